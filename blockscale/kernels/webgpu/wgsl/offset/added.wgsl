// An offset of the block, which is subtracted first and added last: each is rounded by itself.
// needs: step/step, bits/add
fn without_offset(x: u32, s: Step) -> u32 {
    return subtract(x, s.offset);
}

fn with_offset(value: u32, s: Step) -> u32 {
    return add(value, s.offset);
}
