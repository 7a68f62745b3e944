fn stored_offset(x: u32) -> u32 {
    return x;
}
