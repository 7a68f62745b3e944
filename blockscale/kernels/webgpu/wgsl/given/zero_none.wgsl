fn given_zero(block: u32) -> i32 {
    return 0;
}
