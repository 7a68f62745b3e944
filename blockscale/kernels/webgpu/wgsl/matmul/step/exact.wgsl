// A block's step as it is defined.
// needs: given/step
fn quick_step(block: u32) -> Step {
    return step_at(block);
}
