// Stored scales that are float32: as they are.
@group(0) @binding(scales) var<storage, read> scales: array<u32>;

fn given_scale(block: u32) -> u32 {
    return scales[block];
}
