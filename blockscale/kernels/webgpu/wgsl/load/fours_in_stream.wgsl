// Codes of BITS without gaps between rows; i counts elements of a piece.
@group(0) @binding(codes) var<storage, read> codes: array<u32>;

fn code_at(i: u32) -> u32 {
    let bit = i % 32u * BITS;
    let word = i / 32u * BITS + bit / 32u;
    let shift = bit % 32u;
    var pattern = codes[word] >> shift;
    if (shift + BITS > 32u) {
        pattern |= codes[word + 1u] << (32u - shift);
    }
    return pattern & (0xffffffffu >> (32u - BITS));
}

// Four codes from i on, which is a multiple of four.
fn codes4(i: u32) -> vec4<u32> {
    if (BITS > 8u) {
        return vec4(code_at(i), code_at(i + 1u), code_at(i + 2u), code_at(i + 3u));
    }
    let bit = i % 32u * BITS;
    let word = i / 32u * BITS + bit / 32u;
    let shift = bit % 32u;
    var four = codes[word] >> shift;
    if (32u % (4u * BITS) != 0u && shift + 4u * BITS > 32u) {
        four |= codes[word + 1u] << (32u - shift);
    }
    let mask = 0xffffffffu >> (32u - BITS);
    return (vec4(four) >> (vec4(0u, 1u, 2u, 3u) * min(BITS, 8u))) & vec4(mask);
}
