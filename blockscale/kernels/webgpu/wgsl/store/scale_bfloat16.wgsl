// needs: bits/half
fn stored_scale(x: u32) -> u32 {
    return narrow_bfloat16(x);
}
