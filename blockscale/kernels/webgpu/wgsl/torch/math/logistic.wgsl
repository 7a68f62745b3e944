// 1 / (1 + exp(-x)), from exp of what is negative, which does not overflow.
// needs: torch/math/exponential
fn logistic(x: u32) -> f32 {
    let power = exponential(x | 0x80000000u);
    return select(1.0, power, x >> 31u == 1u) / (1.0 + power);
}
