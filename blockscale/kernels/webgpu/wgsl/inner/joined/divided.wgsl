// The outer scale is stored as its reciprocal: scales are divided by it.
// needs: bits/quick, bits/quotient, bits/reciprocal, step/step, inner/finite
fn joined(value: u32, outer: u32) -> u32 {
    let step = quotient(value, outer, reciprocal(outer), is_ordinary(outer));
    return select(kept_finite(step), step, (value << 1u) == 0u);
}

// A wanted step in units of its outer scale.
fn in_outer(step: u32, outer: u32) -> u32 {
    return quick_multiply(step, outer);
}
