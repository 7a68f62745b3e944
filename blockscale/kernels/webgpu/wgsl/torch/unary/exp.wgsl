// needs: torch/math/exponential
fn of_one(x: u32) -> u32 {
    return bits_of(exponential(x));
}
