// needs: bits/half
fn stored_zero(x: i32) -> u32 {
    return narrow_bfloat16(bitcast<u32>(x));
}
