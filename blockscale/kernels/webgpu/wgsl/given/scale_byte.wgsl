// Stored scales of a byte: e8m0, and the codes of two levels.
@group(0) @binding(scales) var<storage, read> scales: array<u32>;

fn given_scale(block: u32) -> u32 {
    return (scales[block / 4u] >> (block % 4u * 8u)) & 0xffu;
}
