// The outer scale is stored as its reciprocal.
// needs: bits/divide
fn outer_ratio(largest: u32) -> u32 {
    return divide(OUTER_LEVELS, largest);
}
