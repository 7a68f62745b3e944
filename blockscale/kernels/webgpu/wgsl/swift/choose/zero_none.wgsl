// Formats without a zero point.
fn zero_found(found: Keys, scale: u32, inverse: u32) -> i32 {
    return 0;
}
