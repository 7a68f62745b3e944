// Numbers of 16 bits, two a word, widened to float32 bits.
// needs: float/{dtype}
@group(0) @binding(x) var<storage, read> x: array<vec2<u32>>;

fn load4(quad: u32) -> vec4<u32> {
    let four = x[quad];
    return vec4(widen(four.x & 0xffffu), widen(four.x >> 16u),
                widen(four.y & 0xffffu), widen(four.y >> 16u));
}

fn load1(i: u32) -> u32 {
    return widen((x[i / 4u][i / 2u % 2u] >> (i % 2u * 16u)) & 0xffffu);
}
