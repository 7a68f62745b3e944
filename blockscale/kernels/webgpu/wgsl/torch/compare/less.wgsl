// needs: torch/math/order
fn holds(a: u32, b: u32) -> bool {
    return !either_nan(a, b) && order(a) < order(b);
}
