// What is stored beside the codes of a block -> its Step.
// needs: step/{step}, given/scale_{given_scale}, given/zero_{given_zero}, given/outer_{given_outer}, given/offset_{given_offset}
fn step_at(block: u32) -> Step {
    return step_of(given_scale(block), given_zero(block), given_outer(block), given_offset(block));
}
