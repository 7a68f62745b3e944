// Quotients of ordinary steps (step/step) that are at most an ulp off, put right.
fn exponent_field(x: u32) -> u32 {
    return (x >> 23u) & 0xffu;
}

// Whether all that takes part is a normal number.
fn is_correctable(x: u32, near: u32) -> bool {
    return max(exponent_field(x) - 1u, exponent_field(near) - 2u) < 252u;
}

// fl(x / step): the remainder x - near * step, of which the last 32 bits say all, says which
// neighbour of `near` that is.
fn corrected(x: u32, near: u32, step: u32) -> u32 {
    let divisor = (step & 0x7fffffu) | 0x800000u;
    let places = exponent_field(x) - exponent_field(near) - exponent_field(step) + 150u; // 23 or 24
    let whole = ((x & 0x7fffffu) | 0x800000u) << (places & 31u);
    let rest = i32(whole - ((near & 0x7fffffu) | 0x800000u) * divisor);
    // Below a power of two neighbours are half as far apart, but a rest there is -2^23 at most.
    return near + u32(2 * rest > i32(divisor)) - u32(2 * rest < -i32(divisor));
}
