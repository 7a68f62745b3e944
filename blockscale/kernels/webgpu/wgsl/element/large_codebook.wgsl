// Tables of more than 16 values, in a buffer: thresholds in the order of in_order and one more,
// the codes by place, the values by code, 2^BITS of each.
// needs: bits/parts, step/step
@group(0) @binding(table) var<storage, read> table: array<u32>;

fn encode(y: u32, s: Step, word: u32) -> u32 {
    let wanted = in_order(select(y, 0u, is_nan(y)));
    var place = 0u;
    for (var width = 1u << (BITS - 1u); width > 0u; width >>= 1u) {
        place += select(0u, width, table[place + width - 1u] < wanted);
    }
    return table[(1u << BITS) + place];
}

fn decode(code: u32, s: Step) -> u32 {
    return table[(2u << BITS) + (code & ((1u << BITS) - 1u))];
}
