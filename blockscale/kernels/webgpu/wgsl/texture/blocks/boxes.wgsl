// Blocks that are boxes: a coordinate divided by the block's size along each dimension, times the
// stride of blocks along it. The batch is folded with the channels in z.
fn row_start(y: u32, z: u32) -> u32 {
    let batch = z / sizes.channels;
    let channel = z - batch * sizes.channels;
    return y / sizes.block_height * sizes.stride_height
        + channel / sizes.block_channels * sizes.stride_channels
        + batch / sizes.block_batch * sizes.stride_batch;
}

// The block of element `e` of a row, from what row_start gave.
fn block_in_row(start: u32, e: u32) -> u32 {
    return start + e / sizes.block_width;
}
