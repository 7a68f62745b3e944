// Block scales stored as float16.
// needs: matmul/half/float16
@group(0) @binding(scale) var<storage, read> scale: array<u32>;

fn scale_of(block: u32) -> u32 {
    return float16_bits(scale[block / 2u] >> (block % 2u * 16u) & 0xffffu);
}
