// Counter-based random numbers (docs/numerics.md, section 2): Philox4x32-10 (Salmon et al., SC 2011).
// needs: bits/wide
// index: of the element; both of 64 bits. 24 random bits.
fn draw(index: vec2<u32>, seed: vec2<u32>) -> u32 {
    var counter = vec4<u32>((index.x >> 2u) | (index.y << 30u), index.y >> 2u, 0u, 0u);
    var key = seed;
    for (var i = 0u; i < 10u; i++) {
        let a = wide_product(counter.x, 0xd2511f53u);
        let b = wide_product(counter.z, 0xcd9e8d57u);
        counter = vec4<u32>(b.y ^ counter.y ^ key.x, b.x, a.y ^ counter.w ^ key.y, a.x);
        key += vec2<u32>(0x9e3779b9u, 0xbb67ae85u);
    }
    return counter[index.x & 3u] >> 8u;
}
