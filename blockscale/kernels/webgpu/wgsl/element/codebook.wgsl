// Tables of values (docs/numerics.md, section 4). Their thresholds are in the order of in_order.
// needs: bits/parts, step/step
fn encode(y: u32, s: Step, word: u32) -> u32 {
    let wanted = in_order(select(y, 0u, is_nan(y)));
    var place = 0u;
    for (var width = 1u << (BITS - 1u); width > 0u; width >>= 1u) {
        place += select(0u, width, THRESHOLDS[place + width - 1u] < wanted);
    }
    return ORDER[place];
}

fn decode(code: u32, s: Step) -> u32 {
    return VALUES[code & ((1u << BITS) - 1u)];
}
