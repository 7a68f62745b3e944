// Scales that are codes of an integer.
// needs: round/even
fn inner_value(code: u32) -> u32 {
    let mask = 0xffffffffu >> (32u - INNER_BITS);
    let spread = i32(code << (32u - INNER_BITS)) >> (32u - INNER_BITS);
    return bitcast<u32>(f32(select(i32(code & mask), spread, INNER_SIGNED)));
}

// wanted: between 1 and the largest
fn inner_code(wanted: u32) -> u32 {
    return rounded_even(wanted, 127u);
}
