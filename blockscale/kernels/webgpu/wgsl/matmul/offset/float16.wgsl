// An offset for each block, stored as float16.
// needs: matmul/half/float16
@group(0) @binding(offset) var<storage, read> offset: array<u32>;

fn offset_of(block: u32) -> u32 {
    return float16_bits(offset[block / 2u] >> (block % 2u * 16u) & 0xffffu);
}
