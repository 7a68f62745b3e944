// Blocks that are no boxes of texels: found by the element's index in the tensor.
// needs: blocks/{blocks}
fn row_start(y: u32, z: u32) -> u32 {
    return (z * sizes.height + y) * sizes.width;
}

fn block_in_row(start: u32, e: u32) -> u32 {
    return block_of(start + e);
}
