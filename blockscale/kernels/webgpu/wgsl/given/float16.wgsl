// float16 bits -> float32 bits, subnormals and NaN included.
fn float16_widened(half: u32) -> u32 {
    let sign = (half & 0x8000u) << 16u;
    let field = (half >> 10u) & 0x1fu;
    let fraction = half & 0x3ffu;
    if (field == 31u) {
        return sign | select(0x7f800000u, 0x7fc00000u, fraction != 0u);
    }
    if (field != 0u) {
        return sign | ((field + 112u) << 23u) | (fraction << 13u);
    }
    if (fraction == 0u) {
        return sign;
    }
    let top = firstLeadingBit(fraction);
    return sign | ((top + 103u) << 23u) | ((fraction << (23u - top)) & 0x7fffffu);
}
