// needs: torch/math/error_function
fn of_one(x: u32) -> u32 {
    if (x == 0xff800000u) { // -inf times 0
        return NAN;
    }
    let half = 0.5 * float_of(x);
    let rest = complement(bits_of(abs(float_of(x)) * 0.70710678));
    if (x >> 31u == 0u) { // x, less what is missing to it
        return select(bits_of(half * (2.0 - rest)), x, x == INFINITY);
    }
    return select(bits_of(half * rest), 0x80000000u, rest == 0.0);
}
