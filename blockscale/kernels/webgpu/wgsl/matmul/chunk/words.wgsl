// Sixteen bytes of a row at once: rows begin at multiples of them, and BITS divide them.
@group(0) @binding(words) var<storage, read> words: array<vec4<u32>>;
const CHUNK: u32 = 32u / BITS; // quads

fn chunk_of(n: u32, quad: u32) -> vec4<u32> {
    return words[n * (sizes.row_bytes / 16u) + quad / CHUNK];
}

// The codes of quad `i` of a chunk that begins at `quad`.
fn chunk_codes(chunk: vec4<u32>, n: u32, quad: u32, i: u32) -> vec4<u32> {
    let four = chunk[i * BITS / 8u] >> (i * (4u * BITS) % 32u);
    return vec4(four, four >> BITS, four >> (2u * BITS), four >> (3u * BITS)) & vec4(CODE_MASK);
}
