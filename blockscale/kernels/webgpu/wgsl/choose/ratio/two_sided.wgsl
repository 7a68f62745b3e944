// A divisor for each end of the range.
// needs: choose/chosen, bits/quotient, step/step
fn ratio_of(r: Range) -> u32 {
    let high = quotient(r.high, HIGHEST, INVERSE_HIGHEST, is_ordinary(HIGHEST));
    let low = quotient(r.low, LOWEST, INVERSE_LOWEST, is_ordinary(LOWEST));
    return max(high & 0x7fffffffu, low & 0x7fffffffu);
}
