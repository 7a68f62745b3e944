// needs: hardware/{hardware}, bits/divide
fn reciprocal(x: u32) -> u32 {
    return divide(ONE, x);
}
