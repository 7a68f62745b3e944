// The step is the product of a scale and its outer scale.
// needs: bits/quick, bits/quotient, bits/reciprocal, step/step, inner/finite
fn joined(value: u32, outer: u32) -> u32 {
    let step = quick_multiply(value, outer);
    let is_zero = (value << 1u) == 0u || (outer << 1u) == 0u;
    return select(kept_finite(step), step, is_zero);
}

// A wanted step in units of its outer scale.
fn in_outer(step: u32, outer: u32) -> u32 {
    return quotient(step, outer, reciprocal(outer), is_ordinary(outer));
}
