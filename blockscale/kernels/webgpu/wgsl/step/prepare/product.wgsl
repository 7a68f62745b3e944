// For products with a reciprocal, which is kept finite (docs/numerics.md, section 4: recip).
// needs: step/step, bits/reciprocal, bits/divide
fn prepared(step: u32, zero: i32, offset: u32) -> Step {
    let ordinary = is_ordinary(step);
    return Step(step, finite_reciprocal(step, ordinary), zero, offset, ordinary);
}

fn finite_reciprocal(x: u32, ordinary: bool) -> u32 {
    if (ordinary) {
        return reciprocal(x);
    }
    return within_finite(divide(ONE, x));
}

fn within_finite(x: u32) -> u32 {
    return select(x, (x & SIGN) | LARGEST, (x & MAGNITUDE) == INFINITY);
}
