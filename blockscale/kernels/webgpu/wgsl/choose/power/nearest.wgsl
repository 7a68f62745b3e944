// The power of two that is nearest to fl(a / L) in its logarithm.
// needs: bits/power, choose/levels
fn power_of(a: u32) -> i32 {
    let scale = per_level(a);
    return exponent_of(scale) + i32(fraction_of(scale) > 0x3504f3u); // the square root of 2
}

fn is_without_power(a: u32) -> bool {
    return a == 0u || per_level(a) == 0u;
}
