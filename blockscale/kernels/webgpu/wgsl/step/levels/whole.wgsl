// What is prepared from the step as a whole.
// needs: step/step
fn with_levels(s: Step, value: u32, outer: u32) -> Step {
    return s;
}
