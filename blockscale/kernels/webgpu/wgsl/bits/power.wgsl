// needs: bits/parts
// 2^n, n = -149 … 127
fn power_of_two(n: i32) -> u32 {
    if (n < -126) {
        return 1u << u32(n + 149);
    }
    return u32(n + 127) << 23u;
}

// Of a finite magnitude above 0: floor(log2), and the 23 bits of its fraction.
fn exponent_of(magnitude: u32) -> i32 {
    return parts_of(magnitude).exponent + 23;
}

fn fraction_of(magnitude: u32) -> u32 {
    return parts_of(magnitude).mantissa & 0x7fffffu;
}
