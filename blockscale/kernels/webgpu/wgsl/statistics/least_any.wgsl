// Sums of all magnitudes; `largest` are those of blocks.
@group(0) @binding(largest) var<storage, read> largest: array<u32>;
const STRICTLY = false;

fn largest_of(block: u32) -> u32 {
    return largest[block];
}

fn least_of(block: u32) -> u32 {
    return 0u;
}
