// For division: the reciprocal of an ordinary step, correctly rounded.
// needs: step/step, bits/reciprocal
fn prepared(step: u32, zero: i32, offset: u32) -> Step {
    return Step(step, reciprocal(step), zero, offset, is_ordinary(step));
}
