// exp, whose values at the ends are ours: a device's own need not be right there.
// needs: torch/math/order, torch/math/float_of
fn exponential(x: u32) -> f32 {
    if (order(x) < -1120927744) { // -104: below it float32 has only 0
        return 0.0;
    }
    if (order(x) > 1118925336) { // 88.72284: above it, only what is infinite
        return float_of(INFINITY);
    }
    return exp(float_of(x));
}
