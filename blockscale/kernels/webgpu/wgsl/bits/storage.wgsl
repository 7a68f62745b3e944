// Floats as they are stored <-> float32 bits. Which type is said by a constant: 0 for float32,
// 1 for float16, 2 for bfloat16.
// needs: bits/half
fn widened(stored: u32, storage: u32) -> u32 {
    if (storage == 1u) {
        return widen_float16(stored);
    }
    return select(stored, stored << 16u, storage == 2u);
}

fn narrowed(x: u32, storage: u32) -> u32 {
    if (storage == 1u) {
        return narrow_float16(x);
    }
    return select(x, narrow_bfloat16(x), storage == 2u);
}
