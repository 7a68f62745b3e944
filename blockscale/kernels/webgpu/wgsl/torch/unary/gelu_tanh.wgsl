// needs: torch/math/tangent
fn of_one(x: u32) -> u32 {
    if (x == 0xff800000u) { // -inf times 0
        return NAN;
    }
    if ((x & 0x7fffffffu) > 0x42000000u) { // beyond 32 it is x or 0
        return select(x, 0x80000000u, x >> 31u == 1u);
    }
    let value = float_of(x);
    let inner = 0.7978845608 * (value + 0.044715 * value * value * value);
    return bits_of(0.5 * value * (1.0 + tangent(bits_of(inner))));
}
