fn stored_zero(x: i32) -> u32 {
    return bitcast<u32>(x);
}
