// Blocks that follow one another in memory, each of sizes.block elements but for the last.
fn block_of(i: u32) -> u32 {
    return i / sizes.block;
}
