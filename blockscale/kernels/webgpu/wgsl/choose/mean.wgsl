// Means of magnitudes (docs/numerics.md, 3.2), from exact sums of whole numbers.
// needs: bits/divide, bits/multiply, bits/integer, bits/wide
// sum: of units 2^(power - 157), of `count` numbers; power: the exponent field of the largest of
// them, 1 for a subnormal. The mean, 0 of none.
fn mean_of(sum: vec2<u32>, count: u32, power: u32) -> u32 {
    let quotient = divide(wide_to_float(sum), rounded_float(max(count, 1u), 0));
    return multiply(multiply(quotient, 0x30800000u), power << 23u); // 2^-30, 2^(power - 127)
}
