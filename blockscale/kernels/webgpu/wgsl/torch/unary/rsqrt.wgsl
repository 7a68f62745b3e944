// needs: torch/math/order, torch/math/float_of
fn of_one(x: u32) -> u32 {
    if (order(x) < 0) {
        return NAN;
    }
    if ((x << 1u) == 0u) {
        return INFINITY | x;
    }
    return select(bits_of(1.0 / sqrt(float_of(x))), 0u, x == INFINITY);
}
