// Zero points that are bfloat16, as the bits of float32.
@group(0) @binding(zeros) var<storage, read> zeros: array<u32>;

fn given_zero(block: u32) -> i32 {
    return bitcast<i32>((zeros[block / 2u] >> (block % 2u * 16u)) << 16u);
}
