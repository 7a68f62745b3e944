// Sixteen bytes of four rows of codes at once: rows begin at multiples of them, and codes have four
// or eight bits. Written out: loops with arrays in them may end up in slow memory.
// needs: matmul/chunk/sums, matmul/decode/{decode}
@group(0) @binding(words) var<storage, read> words: array<vec4<u32>>;
const CHUNK: u32 = 32u / BITS; // quads
const UNIT: u32 = 8u / BITS; // quads of a word
const PIECE_WORDS: u32 = PIECE / UNIT;

fn take_chunk(n: vec4<u32>, first: u32, place: u32, sums: ptr<function, Sums>) -> bool {
    let row = sizes.row_bytes / 16u;
    let at = first / CHUNK;
    let c0 = words[n.x * row + at];
    let c1 = words[n.y * row + at];
    let c2 = words[n.z * row + at];
    let c3 = words[n.w * row + at];
    var blocks = blocks_of(n, first);
    var doubt = blocks.doubt;
    var part = take_word(vec4(c0.x, c1.x, c2.x, c3.x), blocks, place, Sums(), &doubt);
    if (PIECE_WORDS == 1u) {
        finish(part, blocks, sums);
        part = Sums();
        blocks = blocks_of(n, first + UNIT);
        doubt |= blocks.doubt;
    }
    part = take_word(vec4(c0.y, c1.y, c2.y, c3.y), blocks, place + UNIT * ACROSS, part, &doubt);
    if (PIECE_WORDS <= 2u) {
        finish(part, blocks, sums);
        part = Sums();
        blocks = blocks_of(n, first + 2u * UNIT);
        doubt |= blocks.doubt;
    }
    part = take_word(vec4(c0.z, c1.z, c2.z, c3.z), blocks, place + 2u * UNIT * ACROSS, part, &doubt);
    if (PIECE_WORDS == 1u) {
        finish(part, blocks, sums);
        part = Sums();
        blocks = blocks_of(n, first + 3u * UNIT);
        doubt |= blocks.doubt;
    }
    part = take_word(vec4(c0.w, c1.w, c2.w, c3.w), blocks, place + 3u * UNIT * ACROSS, part, &doubt);
    finish(part, blocks, sums);
    return doubt;
}

fn take_word(word: vec4<u32>, blocks: Blocks, place: u32, part: Sums, doubt: ptr<function, bool>)
        -> Sums {
    let v0 = unit_of(word.x, blocks.zeros.x);
    let v1 = unit_of(word.y, blocks.zeros.y);
    let v2 = unit_of(word.z, blocks.zeros.z);
    let v3 = unit_of(word.w, blocks.zeros.w);
    *doubt |= any_reserved(word.x) | any_reserved(word.y) | any_reserved(word.z)
        | any_reserved(word.w);
    let low = add_quad(place, in_blocks(blocks, mat4x4(v0.low, v1.low, v2.low, v3.low)), part);
    if (UNIT == 1u) {
        return low;
    }
    let high = mat4x4(v0.high, v1.high, v2.high, v3.high);
    return add_quad(place + ACROSS, in_blocks(blocks, high), low);
}
