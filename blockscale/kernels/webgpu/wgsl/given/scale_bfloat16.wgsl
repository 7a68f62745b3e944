// Stored scales that are bfloat16, widened to float32 bits.
@group(0) @binding(scales) var<storage, read> scales: array<u32>;

fn given_scale(block: u32) -> u32 {
    return (scales[block / 2u] >> (block % 2u * 16u)) << 16u;
}
