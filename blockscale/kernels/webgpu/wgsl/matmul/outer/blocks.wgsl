// The scales' own scales, float32, in blocks of OUTER_ROWS by OUTER_SIZE scales.
@group(0) @binding(outer) var<storage, read> outer: array<u32>;

fn outer_of_block(block: u32) -> u32 {
    let row = block / sizes.blocks;
    let column = block - row * sizes.blocks;
    return outer[row / OUTER_ROWS * sizes.outer_blocks + column / OUTER_SIZE];
}
