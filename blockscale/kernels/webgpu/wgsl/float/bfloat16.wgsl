// Numbers stored as bfloat16: the upper half of float32's bits, rounded to nearest, ties to even.
const FLOAT_BITS: u32 = 16u;

fn widen(half: u32) -> u32 {
    return half << 16u;
}

fn narrow(x: u32) -> u32 {
    if ((x & 0x7fffffffu) > 0x7f800000u) {
        return 0x7fc0u;
    }
    return (x + 0x7fffu + (x >> 16u & 1u)) >> 16u;
}
