// Blocks without an offset.
fn offset_of(block: u32) -> u32 {
    return 0u;
}
