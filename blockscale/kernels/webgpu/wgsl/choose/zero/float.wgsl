// fl(qmin - fl(lo / step)) with the step of the stored scale (docs/numerics.md, 3.6).
// needs: statistics/range, step/{step}, bits/quotient, bits/reciprocal, bits/add, bits/storable
fn choose_zero(r: Range, scale: u32, outer: u32) -> i32 {
    let s = step_of(scale, 0, outer, 0u);
    let found = subtract(LOWEST, quotient(r.low, s.bits, reciprocal(s.bits), s.ordinary));
    return bitcast<i32>(storable_signed(select(found, 0u, is_nan(found)), ZERO_STORAGE));
}
