// needs: torch/math/order, torch/math/float_of
fn of_one(x: u32) -> u32 {
    if (order(x) < 0) {
        return NAN;
    }
    return select(bits_of(sqrt(float_of(x))), x, (x << 1u) == 0u || x == INFINITY);
}
