// The values of a word's codes: four codes of eight bits, or eight of four.
struct Unit { low: vec4<f32>, high: vec4<f32> }

fn split_unit(word: u32, zero: f32) -> Unit {
    let places = vec4(0u, 1u, 2u, 3u) * BITS;
    let mask = vec4((1u << BITS) - 1u);
    let low = values_of((vec4(word) >> places) & mask, zero);
    if (BITS == 8u) {
        return Unit(low, low);
    }
    return Unit(low, values_of((vec4(word >> 16u) >> places) & mask, zero));
}
