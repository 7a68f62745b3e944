// Stored scales that are float16, widened to float32 bits.
// needs: given/float16
@group(0) @binding(scales) var<storage, read> scales: array<u32>;

fn given_scale(block: u32) -> u32 {
    return float16_widened((scales[block / 2u] >> (block % 2u * 16u)) & 0xffffu);
}
