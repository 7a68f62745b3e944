@group(0) @binding(offsets) var<storage, read> offsets: array<u32>;

fn given_offset(block: u32) -> u32 {
    return offsets[block];
}
