// A weight's codes of BITS <= 8, in rows of sizes.row_bytes bytes, and the step of each block.
// needs: given/step, code/value
@group(0) @binding(codes) var<storage, read> codes: array<u32>;
const CODE_MASK: u32 = (1u << BITS) - 1u;

// 32 bits from a byte's bit on.
fn bits_from(place: u32, bit: u32) -> u32 {
    let shift = place % 4u * 8u + bit;
    let word = place / 4u;
    return codes[word] >> shift | codes[word + 1u] << 1u << (31u - shift);
}

fn code_of_place(n: u32, k: u32) -> u32 {
    let bit = k * BITS;
    return bits_from(n * sizes.row_bytes + bit / 8u, bit % 8u) & CODE_MASK;
}

// The codes of columns 4 quad … 4 quad + 3.
fn codes_of(n: u32, quad: u32) -> vec4<u32> {
    let bit = quad * (4u * BITS);
    let four = bits_from(n * sizes.row_bytes + bit / 8u, bit % 8u);
    return vec4(four, four >> BITS, four >> (2u * BITS), four >> (3u * BITS)) & vec4(CODE_MASK);
}

// Four codes, a byte each.
fn four_bytes(four: vec4<u32>) -> u32 {
    return four.x | four.y << 8u | four.z << 16u | four.w << 24u;
}

// Of output n of those that are bound, column k.
fn block_of(n: u32, k: u32) -> u32 {
    return (sizes.first + n) / BLOCK_ROWS * sizes.blocks + k / BLOCK_SIZE;
}

// The weight itself, to the bit.
fn weight_of(n: u32, k: u32) -> u32 {
    return value_of(code_of_place(n, k), step_at(block_of(n, k)));
}
