fn given_outer(block: u32) -> u32 {
    return 0u;
}
