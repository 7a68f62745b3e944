// One scale of all scales, float32.
@group(0) @binding(outer) var<storage, read> outer: array<u32>;

fn outer_of_block(block: u32) -> u32 {
    return outer[0];
}
