// Blocks without a zero point.
fn zero_of(block: u32) -> i32 {
    return 0;
}
