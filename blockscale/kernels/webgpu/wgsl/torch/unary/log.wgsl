// needs: torch/math/order, torch/math/float_of
fn of_one(x: u32) -> u32 {
    if (order(x) < 0) {
        return NAN;
    }
    if ((x & 0x7fffffffu) == 0u) {
        return 0xff800000u;
    }
    if (x < 0x800000u) { // subnormal, which devices take for 0
        return bits_of(log(f32(x)) - 103.27893);
    }
    return select(bits_of(log(float_of(x))), INFINITY, x == INFINITY);
}
