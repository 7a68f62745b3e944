// Scales that are codes of a table.
// needs: bits/parts
fn inner_value(code: u32) -> u32 {
    return INNER_VALUES[code & ((1u << INNER_BITS) - 1u)];
}

fn inner_code(wanted: u32) -> u32 {
    var place = 0u;
    for (var width = 1u << (INNER_BITS - 1u); width > 0u; width >>= 1u) {
        place += select(0u, width, INNER_THRESHOLDS[place + width - 1u] < in_order(wanted));
    }
    return INNER_ORDER[place];
}
