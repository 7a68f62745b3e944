// Numbers are the bits of a float32 in a u32 wherever a part does not say otherwise: devices flush
// subnormals, divide with an error of an ulp and contract products with sums, but not integers.
const SIGN: u32 = 0x80000000u;
const MAGNITUDE: u32 = 0x7fffffffu;
const INFINITY: u32 = 0x7f800000u;
const LARGEST: u32 = 0x7f7fffffu;
const SMALLEST_NORMAL: u32 = 0x00800000u;
const NAN: u32 = 0x7fc00000u;
const ONE: u32 = 0x3f800000u;

// A finite magnitude above 0 is mantissa * 2^exponent, with a mantissa of 24 bits, of which the
// first is 1.
struct Parts {
    mantissa: u32,
    exponent: i32,
}

fn parts_of(magnitude: u32) -> Parts {
    if (magnitude < SMALLEST_NORMAL) {
        let lift = countLeadingZeros(magnitude) - 8u;
        return Parts(magnitude << lift, -149 - i32(lift));
    }
    return Parts((magnitude & 0x7fffffu) | 0x800000u, i32(magnitude >> 23u) - 150);
}

// The float32 nearest to mantissa * 2^exponent, ties to even. The last bit of a mantissa of more
// than 25 bits may stand for all that lies below it.
fn rounded_float(mantissa: u32, exponent: i32) -> u32 {
    if (mantissa == 0u) {
        return 0u;
    }
    let lead = countLeadingZeros(mantissa);
    let all = mantissa << lead;
    let field = exponent - i32(lead) + 158;
    if (field >= 255) {
        return INFINITY;
    }
    let dropped = u32(8 + max(1 - field, 0)); // more in subnormals
    if (dropped > 32u) {
        return 0u;
    }
    let kept = select(all >> (dropped & 31u), 0u, dropped == 32u);
    let rest = all << (32u - dropped);
    let up = u32(rest > 0x80000000u || (rest == 0x80000000u && (kept & 1u) == 1u));
    return (u32(max(field, 1) - 1) << 23u) + kept + up;
}

fn is_nan(x: u32) -> bool {
    return (x & MAGNITUDE) > INFINITY;
}

fn is_finite(x: u32) -> bool {
    return (x & MAGNITUDE) < INFINITY;
}

// Numbers in their order as unsigned integers, -0 below 0.
fn in_order(x: u32) -> u32 {
    return select(x | SIGN, ~x, x >= SIGN);
}

// Of numbers, where 0 and -0 are equal.
fn less(a: u32, b: u32) -> bool {
    return in_order(select(a, 0u, a == SIGN)) < in_order(select(b, 0u, b == SIGN));
}
