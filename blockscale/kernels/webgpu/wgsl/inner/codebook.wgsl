// Scales that are codes of a table, laid out as in element/large_codebook.
// needs: bits/parts
@group(0) @binding(inner_table) var<storage, read> inner_table: array<u32>;

fn inner_value(code: u32) -> u32 {
    return inner_table[(2u << INNER_BITS) + (code & ((1u << INNER_BITS) - 1u))];
}

fn inner_code(wanted: u32) -> u32 {
    var place = 0u;
    for (var width = 1u << (INNER_BITS - 1u); width > 0u; width >>= 1u) {
        place += select(0u, width, inner_table[place + width - 1u] < in_order(wanted));
    }
    return inner_table[(1u << INNER_BITS) + place];
}
