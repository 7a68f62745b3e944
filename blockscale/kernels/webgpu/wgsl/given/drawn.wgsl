// The random number of each element (docs/numerics.md, 2). seed: its two words, then the two of the
// index of the first element.
// needs: random/philox
@group(0) @binding(seed) var<storage, read> seed: array<u32>;

fn word_of(i: u32) -> u32 {
    let index = seed[2] + i;
    return draw(vec2(index, seed[3] + select(0u, 1u, index < i)), vec2(seed[0], seed[1]));
}

// Those of an element and the next three.
fn words_of(i: u32) -> vec4<u32> {
    let index = seed[2] + i;
    return draw_four(vec2(index, seed[3] + select(0u, 1u, index < i)), vec2(seed[0], seed[1]));
}
