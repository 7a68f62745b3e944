// needs: torch/math/logistic
fn of_one(x: u32) -> u32 {
    return bits_of(logistic(x));
}
