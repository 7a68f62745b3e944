// A bfloat16's bits as those of the same float32.
fn bfloat16_bits(half: u32) -> u32 {
    return half << 16u;
}
