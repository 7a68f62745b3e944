// Formats without a zero point.
// needs: statistics/range
fn choose_zero(r: Range, scale: u32, outer: u32) -> i32 {
    return 0;
}
