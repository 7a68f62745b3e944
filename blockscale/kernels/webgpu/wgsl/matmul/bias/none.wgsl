// Products to which nothing is added.
fn with_bias(n: u32, y: u32) -> u32 {
    return y;
}
