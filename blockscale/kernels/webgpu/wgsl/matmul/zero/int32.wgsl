// A zero point for each block.
@group(0) @binding(zero_point) var<storage, read> zero_point: array<i32>;

fn zero_of(block: u32) -> i32 {
    return zero_point[block];
}
