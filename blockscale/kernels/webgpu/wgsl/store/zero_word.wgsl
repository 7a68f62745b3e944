@group(0) @binding(zeros) var<storage, read_write> zeros: array<i32>;

fn put_zero(block: u32, zero: i32) {
    zeros[block] = zero;
}
