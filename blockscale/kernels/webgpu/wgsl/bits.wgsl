// SPDX-License-Identifier: BSD-3-Clause
// Numbers as bits: the parts of a float32, numbers of 16 bits, and integers of 64.

//# corrected
// Quotients of ordinary steps (step/step) that are at most an ulp off, put right.
fn exponent_field(x: u32) -> u32 {
    return (x >> 23u) & 0xffu;
}

// Whether all that takes part is a normal number.
fn is_correctable(x: u32, near: u32) -> bool {
    return max(exponent_field(x) - 1u, exponent_field(near) - 2u) < 252u;
}

// fl(x / step): the remainder x - near * step, of which the last 32 bits say all, says which
// neighbour of `near` that is.
fn corrected(x: u32, near: u32, step: u32) -> u32 {
    let divisor = (step & 0x7fffffu) | 0x800000u;
    let places = exponent_field(x) - exponent_field(near) - exponent_field(step) + 150u; // 23 or 24
    let whole = ((x & 0x7fffffu) | 0x800000u) << (places & 31u);
    let rest = i32(whole - ((near & 0x7fffffu) | 0x800000u) * divisor);
    // Below a power of two neighbours are half as far apart, but a rest there is -2^23 at most.
    return near + u32(2 * rest > i32(divisor)) - u32(2 * rest < -i32(divisor));
}

//# half
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

//# integer
// fl(i)
// needs: bits/parts
fn to_float(i: i32) -> u32 {
    let negative = i < 0;
    let size = select(u32(i), 0u - u32(i), negative);
    return (u32(negative) << 31u) | rounded_float(size, 0);
}

// Of a number that is no NaN: the whole number below it in magnitude, -most … most.
fn to_integer(x: u32, most: i32) -> i32 {
    let size = x & MAGNITUDE;
    var whole = 0;
    if (size >= ONE) {
        let p = parts_of(min(size, 0x4e800000u)); // 2^30
        let moved = select(p.mantissa << (u32(p.exponent) & 31u),
                           p.mantissa >> (u32(-p.exponent) & 31u), p.exponent < 0);
        whole = min(i32(moved), most);
    }
    return select(whole, -whole, x >= SIGN);
}

//# parts
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

//# power
// needs: bits/parts
// 2^n, n = -149 … 127
fn power_of_two(n: i32) -> u32 {
    if (n < -126) {
        return 1u << u32(n + 149);
    }
    return u32(n + 127) << 23u;
}

// Of a finite magnitude above 0: floor(log2), and the 23 bits of its fraction.
fn exponent_of(magnitude: u32) -> i32 {
    return parts_of(magnitude).exponent + 23;
}

fn fraction_of(magnitude: u32) -> u32 {
    return parts_of(magnitude).mantissa & 0x7fffffu;
}

//# storable
// needs: bits/storage
// A quotient's magnitude -> the scale that is stored for it, as a float32 (3.3). `storage`: as in
// bits/storage
fn storable(size: u32, storage: u32) -> u32 {
    let near = widened(narrowed(size, storage), storage);
    if (storage == 1u) {
        return clamp(near, 0x33800000u, 0x477fe000u); // 2^-24, 65504
    }
    return clamp(near, 0x00800000u, select(0x7f7fffffu, 0x7f7f0000u, storage == 2u));
}

// A number of any size and sign -> the nearest of the type, of at most its largest magnitude.
fn storable_signed(x: u32, storage: u32) -> u32 {
    let size = x & 0x7fffffffu;
    let largest = select(select(0x7f7fffffu, 0x7f7f0000u, storage == 2u), 0x477fe000u,
                         storage == 1u);
    return (x & 0x80000000u) | min(widened(narrowed(min(size, largest), storage), storage), largest);
}

//# storage
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

//# wide
// Whole numbers of 64 bits: (low word, high word).
// needs: bits/parts
fn wide_product(a: u32, b: u32) -> vec2<u32> {
    let low = (a & 0xffffu) * (b & 0xffffu);
    let first = (a >> 16u) * (b & 0xffffu) + (low >> 16u);
    let second = (a & 0xffffu) * (b >> 16u) + (first & 0xffffu);
    let high = (a >> 16u) * (b >> 16u) + (first >> 16u) + (second >> 16u);
    return vec2<u32>((second << 16u) | (low & 0xffffu), high);
}

fn wide_sum(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
    let low = a.x + b.x;
    return vec2<u32>(low, a.y + b.y + u32(low < a.x));
}

// The nearest float32.
fn wide_to_float(a: vec2<u32>) -> u32 {
    if (a.y == 0u) {
        return rounded_float(a.x, 0);
    }
    let lead = countLeadingZeros(a.y);
    let top = (a.y << lead) | select(a.x >> (32u - lead), 0u, lead == 0u);
    return rounded_float(top | u32((a.x << lead) != 0u), 32 - i32(lead));
}
