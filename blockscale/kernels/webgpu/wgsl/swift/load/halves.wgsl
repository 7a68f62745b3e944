// Units of eight numbers of 16 bits.
// needs: float/{dtype}
@group(0) @binding(x) var<storage, read> x: array<vec4<u32>>;
const FOURS: u32 = 2u;

fn four_of(unit: vec4<u32>, j: u32) -> vec4<u32> {
    let two = select(unit.xy, unit.zw, j == 1u);
    return vec4(widen(two.x & 0xffffu), widen(two.x >> 16u), widen(two.y & 0xffffu),
                widen(two.y >> 16u));
}
