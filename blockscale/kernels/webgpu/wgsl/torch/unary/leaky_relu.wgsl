// needs: torch/math/float_of
fn of_one(x: u32) -> u32 {
    return select(x, bits_of(float_of(x) * float_of(sizes.number)), x >> 31u == 1u);
}
