// Formats without an offset.
// needs: statistics/range
fn choose_offset(r: Range, scale: u32, outer: u32) -> u32 {
    return 0u;
}
