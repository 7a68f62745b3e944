// needs: torch/math/order
fn of_two(a: u32, b: u32) -> u32 {
    if (either_nan(a, b)) {
        return 0x7fc00000u;
    }
    return select(b, a, order(b) > order(a));
}
