// needs: bits/parts
// float16 and bfloat16 -> float32 bits, and back to the nearest, ties to even.
fn widen_float16(half: u32) -> u32 {
    let sign = (half & 0x8000u) << 16u;
    let size = half & 0x7fffu;
    if (size >= 0x7c00u) {
        return sign | select(INFINITY, NAN, size > 0x7c00u);
    }
    if (size < 0x400u) { // a multiple of 2^-24: its float32 is normal, or 0
        return sign | select(bitcast<u32>(f32(size)) - (24u << 23u), 0u, size == 0u);
    }
    return sign | ((size << 13u) + (112u << 23u));
}

fn narrow_float16(x: u32) -> u32 {
    let sign = (x >> 16u) & 0x8000u;
    let size = x & MAGNITUDE;
    if (size >= 0x47800000u) { // 2^16
        return sign | select(0x7c00u, 0x7e00u, size > INFINITY);
    }
    let field = max(size >> 23u, 113u); // 2^-14: below it, steps of 2^-24
    let mantissa = select((size & 0x7fffffu) | 0x800000u, size, size < SMALLEST_NORMAL);
    let dropped = min(13u + field - max(size >> 23u, 1u), 31u);
    let half = (1u << (dropped - 1u)) - 1u + ((mantissa >> dropped) & 1u);
    return sign | (((field - 113u) << 10u) + ((mantissa + half) >> dropped));
}

fn widen_bfloat16(half: u32) -> u32 {
    return half << 16u;
}

fn narrow_bfloat16(x: u32) -> u32 {
    if (is_nan(x)) {
        return (x >> 16u) | 0x40u;
    }
    return (x + 0x7fffu + ((x >> 16u) & 1u)) >> 16u;
}
