// Sums of the magnitudes above 0.7 of their mean, fl(0.7f mean) (TWN; docs/numerics.md, 3.2).
// needs: choose/{rule}, bits/multiply
@group(0) @binding(largest) var<storage, read> largest: array<u32>;
@group(0) @binding(first) var<storage, read> first: array<u32>;
const STRICTLY = true;

fn largest_of(block: u32) -> u32 {
    return largest[block];
}

fn least_of(block: u32) -> u32 {
    let sum = vec2(first[block], first[sizes.blocks + block]);
    let mean = mean_of(sum, first[2u * sizes.blocks + block], field_of(largest[block]));
    return multiply(0x3f333333u, mean);
}
