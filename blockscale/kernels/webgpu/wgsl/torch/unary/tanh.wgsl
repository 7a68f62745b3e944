// needs: torch/math/tangent
fn of_one(x: u32) -> u32 {
    return bits_of(tangent(x));
}
