// Block scales stored as float32.
@group(0) @binding(scale) var<storage, read> scale: array<u32>;

fn scale_of(block: u32) -> u32 {
    return scale[block];
}
