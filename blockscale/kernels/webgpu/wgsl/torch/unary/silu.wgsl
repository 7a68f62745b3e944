// needs: torch/math/logistic
fn of_one(x: u32) -> u32 {
    if (x == 0xff800000u) { // -inf times 0
        return NAN;
    }
    return bits_of(float_of(x) * logistic(x));
}
