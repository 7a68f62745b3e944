// A float16's bits as those of the same float32. Integers and products of normal numbers are exact.
fn float16_bits(half: u32) -> u32 {
    let sign = (half & 0x8000u) << 16u;
    let size = half & 0x7fffu;
    if (size >= 0x7c00u) {
        return sign | select(0x7f800000u, 0x7fc00000u, size > 0x7c00u);
    }
    if (size >= 0x400u) {
        return sign | ((size << 13u) + 0x38000000u);
    }
    return sign | bitcast<u32>(f32(size) * 0x1p-24f);
}
