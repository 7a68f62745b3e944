// What is prepared for a block. sure: its codes and values are what products and sums of normal
// numbers give, and its scale is right.
// needs: step/step
struct Swift {
    step: Step,
    scale: u32,
    zero: i32,
    sure: bool,
}

// Of a block of zeros any step makes the same codes and values.
fn for_zeros(s: Step) -> Step {
    return Step(0x3f800000u, 0x3f800000u, s.zero, 0u, true);
}
