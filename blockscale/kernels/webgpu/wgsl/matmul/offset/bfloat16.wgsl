// An offset for each block, stored as bfloat16.
// needs: matmul/half/bfloat16
@group(0) @binding(offset) var<storage, read> offset: array<u32>;

fn offset_of(block: u32) -> u32 {
    return bfloat16_bits(offset[block / 2u] >> (block % 2u * 16u) & 0xffffu);
}
