// Counter-based random numbers (docs/numerics.md, section 2): Philox4x32-10 (Salmon et al., SC 2011).
// needs: bits/wide, random/product/{wide}
// index: of the element; seed; both of 64 bits. 24 random bits.
fn draw(index: vec2<u32>, seed: vec2<u32>) -> u32 {
    return philox(index, seed)[index.x & 3u];
}

// Those of an element and the next three.
fn draw_four(index: vec2<u32>, seed: vec2<u32>) -> vec4<u32> {
    let first = philox(index, seed);
    let skipped = index.x & 3u;
    if (skipped == 0u) {
        return first;
    }
    let second = philox(wide_sum(index, vec2(4u, 0u)), seed);
    if (skipped == 1u) {
        return vec4(first.yzw, second.x);
    }
    return select(vec4(first.w, second.xyz), vec4(first.zw, second.xy), skipped == 2u);
}

// The four numbers of the four elements that an index belongs to.
fn philox(index: vec2<u32>, seed: vec2<u32>) -> vec4<u32> {
    var counter = vec4<u32>((index.x >> 2u) | (index.y << 30u), index.y >> 2u, 0u, 0u);
    var key = seed;
    for (var i = 0u; i < 10u; i++) {
        let a = word_product(counter.x, 0xd2511f53u);
        let b = word_product(counter.z, 0xcd9e8d57u);
        counter = vec4<u32>(b.y ^ counter.y ^ key.x, b.x, a.y ^ counter.w ^ key.y, a.x);
        key += vec2<u32>(0x9e3779b9u, 0xbb67ae85u);
    }
    return counter >> vec4(8u);
}
