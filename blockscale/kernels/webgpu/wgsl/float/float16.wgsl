// Numbers stored as float16, by integers alone: rounded to nearest, ties to even.
const FLOAT_BITS: u32 = 16u;

fn widen(half: u32) -> u32 {
    let sign = (half & 0x8000u) << 16u;
    let exponent = half >> 10u & 31u;
    let mantissa = half & 0x3ffu;
    if (exponent == 31u) {
        return sign | select(0x7f800000u, 0x7fc00000u, mantissa != 0u);
    }
    if (exponent != 0u) {
        return sign | (exponent + 112u) << 23u | mantissa << 13u;
    }
    if (mantissa == 0u) {
        return sign;
    }
    let shift = countLeadingZeros(mantissa) - 21u; // until the leading bit is bit 10
    return sign | (113u - shift) << 23u | (mantissa << shift & 0x3ffu) << 13u;
}

fn narrow(x: u32) -> u32 {
    let sign = x >> 16u & 0x8000u;
    let size = x & 0x7fffffffu;
    if (size > 0x7f800000u) {
        return 0x7e00u;
    }
    if (size >= 0x477ff000u) { // 65520, half way to what would be 2^16
        return sign | 0x7c00u;
    }
    if (size >= 0x38800000u) { // 2^-14, the least normal number
        return sign | (size - 0x38000000u + 0xfffu + (size >> 13u & 1u)) >> 13u;
    }
    if (size < 0x33000000u) { // below half of the least subnormal number, 2^-24
        return sign;
    }
    let whole = (size & 0x7fffffu) | 0x800000u;
    let shift = 126u - (size >> 23u);
    let kept = whole >> shift;
    let rest = whole & ((1u << shift) - 1u);
    let half = 1u << (shift - 1u);
    return sign | (kept + u32(rest > half || (rest == half && (kept & 1u) == 1u)));
}
