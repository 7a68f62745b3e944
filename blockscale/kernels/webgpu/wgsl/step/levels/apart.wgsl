// A reciprocal of either level by itself: fl(fl(1 / outer) / value) (docs/numerics.md, section 4).
// needs: step/step, step/prepare/product
fn with_levels(s: Step, value: u32, outer: u32) -> Step {
    let inverse = within_finite(divide(divide(ONE, outer), value));
    return Step(s.bits, inverse, s.zero, s.offset, s.ordinary && is_ordinary(inverse));
}
