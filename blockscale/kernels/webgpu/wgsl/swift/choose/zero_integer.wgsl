// clamp(qmin - R(lo / step), qmin, qmax), unless that is so near a tie that it takes the quotient.
// needs: hardware/{hardware}, quick/integer
struct Zero {
    point: i32,
    sure: bool,
}

fn zero_found(found: Keys, inverse: u32) -> Zero {
    let near = min(product(found.y, inverse), bitcast<u32>(f32(HIGH - LOW + 1)));
    let rest = sum(near, QUICK_TIE) & ((1u << QUICK_FRACTION) - 1u);
    let steps = i32(sum(near, 0x4b400000u) & 0x3fffffu);
    return Zero(min(LOW + steps, HIGH), rest > 4u);
}
