// The one rule of integers for powers of two (docs/numerics.md, 3.4).
// needs: bits/power
// The exponent n of a numerator above 0.
fn power_of(a: u32) -> i32 {
    return exponent_of(a) - EMAX + i32(fraction_of(a) >= THRESHOLD);
}

fn is_without_power(a: u32) -> bool {
    return a == 0u;
}
