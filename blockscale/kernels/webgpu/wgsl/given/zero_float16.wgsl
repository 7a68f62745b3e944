// Zero points that are float16, as the bits of float32.
// needs: bits/half
@group(0) @binding(zeros) var<storage, read> zeros: array<u32>;

fn given_zero(block: u32) -> i32 {
    return bitcast<i32>(widen_float16((zeros[block / 2u] >> (block % 2u * 16u)) & 0xffffu));
}
