// needs: bits/quotient, step/step
// fl(a / L) of 3.3
fn per_level(a: u32) -> u32 {
    return quotient(a, LEVELS, INVERSE_LEVELS, is_ordinary(LEVELS));
}
