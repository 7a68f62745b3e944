// Scales of one level.
fn outer_of_block(block: u32) -> u32 {
    return 0u;
}
