// Units of blocks that follow one another.
fn place_of(block: u32, unit: u32) -> u32 {
    return block * BLOCK_UNITS + unit;
}
