// needs: bits/half
fn stored_offset(x: u32) -> u32 {
    return narrow_float16(x);
}
