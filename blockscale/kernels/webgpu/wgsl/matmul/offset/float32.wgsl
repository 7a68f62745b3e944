// An offset for each block, stored as float32.
@group(0) @binding(offset) var<storage, read> offset: array<u32>;

fn offset_of(block: u32) -> u32 {
    return offset[block];
}
