// The elements of blocks that follow one another in memory.
const NOWHERE = 0xffffffffu;

fn element_at(block: u32, place: u32) -> u32 {
    let i = block * sizes.block + place;
    return select(NOWHERE, i, i < sizes.count);
}

fn block_size() -> u32 {
    return sizes.block;
}

// How many elements of a block there are: the last one may be partial.
fn elements_in(block: u32) -> u32 {
    return min(sizes.block, sizes.count - block * sizes.block);
}
