// Units of four numbers of 32 bits.
@group(0) @binding(x) var<storage, read> x: array<vec4<u32>>;
const FOURS: u32 = 1u;

fn four_of(unit: vec4<u32>, j: u32) -> vec4<u32> {
    return unit;
}
