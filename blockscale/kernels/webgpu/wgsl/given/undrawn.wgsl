fn word_of(i: u32) -> u32 {
    return 0u;
}
