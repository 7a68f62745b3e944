// Steps that are the stored scale: fp32, fp16, bf16, pow2.
// needs: step/prepare/{how}
fn step_of(scale: u32, zero: i32, outer: u32, offset: u32) -> Step {
    return prepared(scale, zero, offset);
}
