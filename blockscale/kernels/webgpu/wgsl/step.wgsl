// SPDX-License-Identifier: BSD-3-Clause
// The step of a block, made of its stored scale (docs/numerics.md, 1.3).

//# e8m0
// Steps that are powers of two: byte 0 … 254 is 2^(byte - 127 - f), 255 is NaN (numerics.md, 1.3).
// needs: step/step, bits/power
fn step_of(scale: u32, zero: i32, outer: u32, offset: u32) -> Step {
    if (scale == 255u) {
        return Step(NAN, 0x40000000u, zero, offset, false);
    }
    let exponent = i32(scale) - 127 - i32(FRACTION_BITS);
    let step = power_of_two(exponent);
    return Step(step, u32(exponent), zero, offset, is_ordinary(step));
}

//# float
// Steps that are the stored scale: fp32, fp16, bf16, pow2.
// needs: step/prepare/{how}
fn step_of(scale: u32, zero: i32, outer: u32, offset: u32) -> Step {
    return prepared(scale, zero, offset);
}

//# step
// What is prepared once for a block.
struct Step {
    bits: u32, // float32: what codes are multiplied by
    inverse: u32, // what x is multiplied by: float32, or for `shift` the exponent of `bits`
    zero: i32, // the zero point: an integer, or the bits of a float32
    offset: u32, // float32: what is added to values
    ordinary: bool, // 2^-100 … 2^100 in magnitude: products with it are normal
}

fn is_ordinary(step: u32) -> bool {
    return (step & 0x7fffffffu) - 0x0d800000u <= 0x64000000u; // the bits of 2^-100, to 2^100
}

//# two_level
// Steps of scales that are codes with a scale of their own, the outer one (numerics.md, 1.3).
// needs: step/inner/{inner}, step/inner/joined/{join}, step/prepare/{how}, step/levels/{levels}
fn step_of(scale: u32, zero: i32, outer: u32, offset: u32) -> Step {
    let value = inner_value(scale);
    return with_levels(prepared(joined(value, outer), zero, offset), value, outer);
}

//# inner/codebook
// Scales that are codes of a table, laid out as in element/large_codebook.
// needs: bits/parts
@group(0) @binding(inner_table) var<storage, read> inner_table: array<u32>;

fn inner_value(code: u32) -> u32 {
    return inner_table[(2u << INNER_BITS) + (code & ((1u << INNER_BITS) - 1u))];
}

fn inner_code(wanted: u32) -> u32 {
    var place = 0u;
    for (var width = 1u << (INNER_BITS - 1u); width > 0u; width >>= 1u) {
        place += select(0u, width, inner_table[place + width - 1u] < in_order(wanted));
    }
    return inner_table[(1u << INNER_BITS) + place];
}

//# inner/finite
// A step that is neither 0 nor infinite; NaN stays.
fn kept_finite(step: u32) -> u32 {
    let size = step & 0x7fffffffu;
    return select((step & 0x80000000u) | clamp(size, 1u, 0x7f7fffffu), step, size > 0x7f800000u);
}

//# inner/integer
// Scales that are codes of an integer.
// needs: rounding/even
fn inner_value(code: u32) -> u32 {
    let mask = 0xffffffffu >> (32u - INNER_BITS);
    let spread = i32(code << (32u - INNER_BITS)) >> (32u - INNER_BITS);
    return bitcast<u32>(f32(select(i32(code & mask), spread, INNER_SIGNED)));
}

// wanted: between 1 and the largest
fn inner_code(wanted: u32) -> u32 {
    return rounded_even(wanted, 127u);
}

//# inner/joined/divided
// The outer scale is stored as its reciprocal: scales are divided by it.
// needs: arithmetic/{arithmetic}/quick_multiply, arithmetic/{arithmetic}/quotient
// needs: arithmetic/{arithmetic}/reciprocal, step/step, step/inner/finite
fn joined(value: u32, outer: u32) -> u32 {
    let step = quotient(value, outer, reciprocal(outer), is_ordinary(outer));
    return select(kept_finite(step), step, (value << 1u) == 0u);
}

// A wanted step in units of its outer scale.
fn in_outer(step: u32, outer: u32) -> u32 {
    return quick_multiply(step, outer);
}

//# inner/joined/multiplied
// The step is the product of a scale and its outer scale.
// needs: arithmetic/{arithmetic}/quick_multiply, arithmetic/{arithmetic}/quotient
// needs: arithmetic/{arithmetic}/reciprocal, step/step, step/inner/finite
fn joined(value: u32, outer: u32) -> u32 {
    let step = quick_multiply(value, outer);
    let is_zero = (value << 1u) == 0u || (outer << 1u) == 0u;
    return select(kept_finite(step), step, is_zero);
}

// A wanted step in units of its outer scale.
fn in_outer(step: u32, outer: u32) -> u32 {
    return quotient(step, outer, reciprocal(outer), is_ordinary(outer));
}

//# inner/minifloat
// Scales that are codes of a minifloat.
// needs: element/minifloat_numbers, bits/parts, rounding/even
const INNER = Minifloat(INNER_BITS, INNER_MBITS, INNER_LEAST, INNER_LARGEST_VALUE,
                        INNER_MAX_CODE, INNER_NAN_CODE, INNER_INFINITY_CODE);

fn inner_value(code: u32) -> u32 {
    return minifloat_value(code, INNER);
}

// wanted: between the smallest normal number and the largest
fn inner_code(wanted: u32) -> u32 {
    let field = wanted >> 23u;
    return ((field - INNER_LEAST) << INNER_MBITS) + rounded_even(wanted, field - INNER_MBITS);
}

//# levels/joint
// What is prepared from the step as a whole.
// needs: step/step
fn with_levels(s: Step, value: u32, outer: u32) -> Step {
    return s;
}

//# levels/separate
// A reciprocal of either level by itself: fl(fl(1 / outer) / value) (docs/numerics.md, section 4).
// needs: step/step, step/prepare/product
fn with_levels(s: Step, value: u32, outer: u32) -> Step {
    let inverse = within_finite(divide(divide(ONE, outer), value));
    return Step(s.bits, inverse, s.zero, s.offset, s.ordinary && is_ordinary(inverse));
}

//# prepare/product
// For products with a reciprocal, which is kept finite (docs/numerics.md, section 4: recip).
// needs: step/step, arithmetic/{arithmetic}/reciprocal, arithmetic/{arithmetic}/divide
fn prepared(step: u32, zero: i32, offset: u32) -> Step {
    let ordinary = is_ordinary(step);
    return Step(step, finite_reciprocal(step, ordinary), zero, offset, ordinary);
}

fn finite_reciprocal(x: u32, ordinary: bool) -> u32 {
    if (ordinary) {
        return reciprocal(x);
    }
    return within_finite(divide(ONE, x));
}

fn within_finite(x: u32) -> u32 {
    return select(x, (x & SIGN) | LARGEST, (x & MAGNITUDE) == INFINITY);
}

//# prepare/quotient
// For division: the reciprocal of an ordinary step, correctly rounded.
// needs: step/step, arithmetic/{arithmetic}/reciprocal
fn prepared(step: u32, zero: i32, offset: u32) -> Step {
    return Step(step, reciprocal(step), zero, offset, is_ordinary(step));
}
