// Stored scales that are float16, widened to float32 bits.
// needs: bits/half
@group(0) @binding(scales) var<storage, read> scales: array<u32>;

fn given_scale(block: u32) -> u32 {
    return widen_float16((scales[block / 2u] >> (block % 2u * 16u)) & 0xffffu);
}
