// needs: torch/math/float_of
fn of_one(x: u32) -> u32 {
    let sign = x & 0x80000000u;
    if ((x << 1u) == 0u) {
        return sign | INFINITY;
    }
    return select(bits_of(1.0 / float_of(x)), sign, (x & 0x7fffffffu) == INFINITY);
}
