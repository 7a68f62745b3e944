fn stored_scale(x: u32) -> u32 {
    return x;
}
