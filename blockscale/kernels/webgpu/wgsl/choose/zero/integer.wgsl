// clamp(qmin - R(fl(lo / step)), qmin, qmax) with the step of the stored scale (numerics.md, 3.6).
// needs: statistics/range, step/{step}, bits/quotient, bits/reciprocal, round/even
fn choose_zero(r: Range, scale: u32, outer: u32) -> i32 {
    let s = step_of(scale, 0, outer, 0u);
    let steps = quotient(r.low, s.bits, reciprocal(s.bits), s.ordinary); // at most 0, or NaN
    let whole = i32(rounded_even(min(steps & MAGNITUDE, 0x4b000000u), 127u));
    return clamp(LOW + select(whole, -LOW, is_nan(steps)), LOW, HIGH);
}
