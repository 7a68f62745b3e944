// The random numbers of elements (docs/numerics.md, 2). seed: its two words, then the two of the
// index of the first element.
// needs: random/philox
@group(0) @binding(seed) var<storage, read> seed: array<u32>;

fn index_of(i: u32) -> vec2<u32> {
    let index = seed[2] + i;
    return vec2(index, seed[3] + select(0u, 1u, index < i));
}

fn word_of(i: u32) -> u32 {
    return draw(index_of(i), vec2(seed[0], seed[1]));
}

fn words_of(i: u32) -> vec4<u32> {
    return vec4(word_of(i), word_of(i + 1u), word_of(i + 2u), word_of(i + 3u));
}
