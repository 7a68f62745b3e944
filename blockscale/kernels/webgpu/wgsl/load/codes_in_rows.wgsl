// Codes of BITS in rows that end anywhere in a byte; i counts elements of a whole tensor.
@group(0) @binding(codes) var<storage, read> codes: array<u32>;

fn code_at(i: u32) -> u32 {
    let row = i / sizes.row;
    let bit = (i - row * sizes.row) * BITS;
    let place = row * sizes.row_bytes + bit / 8u;
    let shift = place % 4u * 8u + bit % 8u;
    var pattern = codes[place / 4u] >> shift;
    if (shift + BITS > 32u) {
        pattern |= codes[place / 4u + 1u] << (32u - shift);
    }
    return pattern & (0xffffffffu >> (32u - BITS));
}

