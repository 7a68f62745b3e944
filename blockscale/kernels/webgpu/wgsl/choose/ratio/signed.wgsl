// The value of largest magnitude, with its sign, gets the lowest code (ggml's Q4_0).
// needs: choose/chosen, bits/quotient, step/step
fn ratio_of(r: Range) -> u32 {
    let value = select(r.low, r.high, (r.high & 0x7fffffffu) >= (r.low & 0x7fffffffu));
    return quotient(value, LOWEST, INVERSE_LOWEST, is_ordinary(LOWEST));
}
