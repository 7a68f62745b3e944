// needs: bits/half
fn stored_zero(x: i32) -> u32 {
    return narrow_float16(bitcast<u32>(x));
}
