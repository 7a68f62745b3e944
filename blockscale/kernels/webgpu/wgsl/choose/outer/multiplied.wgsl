// needs: bits/quotient, step/step
fn outer_ratio(largest: u32) -> u32 {
    return quotient(largest, OUTER_LEVELS, INVERSE_OUTER_LEVELS, is_ordinary(OUTER_LEVELS));
}
