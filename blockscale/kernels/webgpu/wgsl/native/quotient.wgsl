// needs: hardware/{hardware}, bits/divide
fn quotient(x: u32, step: u32, inverse: u32, ordinary: bool) -> u32 {
    return divide(x, step);
}
