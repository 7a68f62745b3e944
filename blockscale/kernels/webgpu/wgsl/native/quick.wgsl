// needs: hardware/{hardware}, bits/multiply
fn quick_multiply(a: u32, b: u32) -> u32 {
    return multiply(a, b);
}
