fn given_offset(block: u32) -> u32 {
    return 0u;
}
