// fl(1 / x), exact as divisions are.
// needs: bits/divide
fn of_one(x: u32) -> u32 {
    return divide(ONE, x);
}
