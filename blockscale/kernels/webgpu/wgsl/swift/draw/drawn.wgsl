// Random numbers of a four of elements; the first element's index is a multiple of four.
// needs: swift/load/{load}, given/drawn
fn words_at(place: u32, four: u32) -> vec4<u32> {
    let i = sizes.first + (place * FOURS + four) * 4u;
    let index = seed[2] + i;
    return philox(vec2(index, seed[3] + select(0u, 1u, index < i)), vec2(seed[0], seed[1]));
}
