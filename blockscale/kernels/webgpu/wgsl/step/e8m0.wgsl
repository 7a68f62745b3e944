// Steps that are powers of two: byte 0 … 254 is 2^(byte - 127 - f), 255 is NaN (numerics.md, 1.3).
// needs: step/step, bits/power
fn step_of(scale: u32, zero: i32, outer: u32, offset: u32) -> Step {
    if (scale == 255u) {
        return Step(NAN, 0x40000000u, zero, offset, false);
    }
    let exponent = i32(scale) - 127 - i32(FRACTION_BITS);
    let step = power_of_two(exponent);
    return Step(step, u32(exponent), zero, offset, is_ordinary(step));
}
