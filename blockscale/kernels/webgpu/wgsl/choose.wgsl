// SPDX-License-Identifier: BSD-3-Clause
// The scale of a block, its zero point and offset (docs/numerics.md, section 3).

//# chosen
// What is chosen for a block (docs/numerics.md, section 3).
// needs: statistics/range, choose/mean, choose/numerator/{numerator}
struct Chosen {
    scale: u32, // as step_of takes it: a byte, or the float32 that the stored one is
    zero: i32, // an integer, or the bits of a float32
    offset: u32, // float32
}

//# e8m0
// Scales that are the byte of a power of two (docs/numerics.md, 3.4).
// needs: choose/chosen, choose/power/{power}, choose/zero/{zero}, choose/offset/{offset}
// needs: choose/outer/none
fn choose(r: Range, outer: u32) -> Chosen {
    let scale = byte_of(r);
    return Chosen(scale, choose_zero(r, scale, outer), choose_offset(r, scale, outer));
}

fn byte_of(r: Range) -> u32 {
    let a = numerator(r);
    if (r.poisoned) {
        return 255u;
    }
    if (is_without_power(a)) {
        return 0u;
    }
    return u32(clamp(power_of(a) + i32(FRACTION_BITS), -127, 127) + 127);
}

//# float
// Scales that are floats (docs/numerics.md, 3.3).
// needs: choose/chosen, choose/ratio/{ratio}, bits/storable, choose/zero/{zero}
// needs: choose/offset/{offset}, choose/outer/none
fn choose(r: Range, outer: u32) -> Chosen {
    let wanted = ratio_of(r);
    let negative = select(0u, wanted & 0x80000000u, (wanted & 0x7fffffffu) != 0u);
    let scale = storable(wanted & 0x7fffffffu, SCALE_STORAGE) | negative;
    return Chosen(scale, choose_zero(r, scale, outer), choose_offset(r, scale, outer));
}

//# levels
// needs: arithmetic/{arithmetic}/quotient, step/step
// fl(a / L) of 3.3
fn per_level(a: u32) -> u32 {
    return quotient(a, LEVELS, INVERSE_LEVELS, is_ordinary(LEVELS));
}

//# mean
// Means of magnitudes (docs/numerics.md, 3.2), from exact sums of whole numbers.
// needs: arithmetic/{arithmetic}/divide, arithmetic/{arithmetic}/multiply, bits/integer, bits/wide
// sum: of units 2^(power - 157), of `count` numbers; power: the exponent field of the largest of
// them, 1 for a subnormal. The mean, 0 of none.
fn mean_of(sum: vec2<u32>, count: u32, power: u32) -> u32 {
    let quotient = divide(wide_to_float(sum), rounded_float(max(count, 1u), 0));
    return multiply(multiply(quotient, 0x30800000u), power << 23u); // 2^-30, 2^(power - 127)
}

//# pow2
// Scales that are powers of two, as floats (docs/numerics.md, 3.4).
// needs: choose/chosen, choose/power/{power}, choose/zero/{zero}, choose/offset/{offset}
// needs: choose/outer/none
fn choose(r: Range, outer: u32) -> Chosen {
    let scale = power_scale_of(r);
    return Chosen(scale, choose_zero(r, scale, outer), choose_offset(r, scale, outer));
}

fn power_scale_of(r: Range) -> u32 {
    let a = numerator(r);
    if (is_without_power(a)) {
        return 0x00800000u;
    }
    return power_of_two(clamp(power_of(a), -126, 127));
}

//# two_level
// Scales that are codes with a scale of their own (docs/numerics.md, 3.5).
// needs: choose/chosen, choose/levels, choose/outer/two_level, step/inner/{inner}
// needs: step/inner/joined/{join}, choose/zero/{zero}, choose/offset/{offset}
fn choose(r: Range, outer: u32) -> Chosen {
    let scale = inner_scale_of(r, outer);
    return Chosen(scale, choose_zero(r, scale, outer), choose_offset(r, scale, outer));
}

fn inner_scale_of(r: Range, outer: u32) -> u32 {
    if (r.poisoned && INNER_NAN_CODE != 0u) {
        return INNER_NAN_CODE;
    }
    let wanted = in_outer(per_level(numerator(r)), outer) & 0x7fffffffu; // no NaN
    return inner_code(clamp(wanted, INNER_SMALLEST_NORMAL, INNER_LARGEST));
}

//# numerator/high
// needs: statistics/range
fn numerator(r: Range) -> u32 {
    return r.high & 0x7fffffffu;
}

//# numerator/magnitude
// needs: statistics/range
fn numerator(r: Range) -> u32 {
    return max(r.low & 0x7fffffffu, r.high & 0x7fffffffu);
}

//# numerator/spread
// needs: statistics/range, arithmetic/{arithmetic}/add
fn numerator(r: Range) -> u32 {
    return min(subtract(r.high, r.low), LARGEST);
}

//# offset/added
// fl(lo - fl(step * l)), l the smallest value of the element (docs/numerics.md, 3.8).
// needs: statistics/range, step/{step}, arithmetic/{arithmetic}/add
// needs: arithmetic/{arithmetic}/quick_multiply, bits/storable
fn choose_offset(r: Range, scale: u32, outer: u32) -> u32 {
    let s = step_of(scale, 0, outer, 0u);
    let found = add(subtract(r.low, quick_multiply(s.bits, LOWEST)), 0u); // -0 becomes 0
    return storable_signed(select(found, 0u, is_nan(found)), OFFSET_STORAGE);
}

//# offset/none
// Formats without an offset.
// needs: statistics/range
fn choose_offset(r: Range, scale: u32, outer: u32) -> u32 {
    return 0u;
}

//# outer/divided
// The outer scale is stored as its reciprocal.
// needs: arithmetic/{arithmetic}/divide
fn outer_ratio(largest: u32) -> u32 {
    return divide(OUTER_LEVELS, largest);
}

//# outer/multiplied
// needs: arithmetic/{arithmetic}/quotient, step/step
fn outer_ratio(largest: u32) -> u32 {
    return quotient(largest, OUTER_LEVELS, INVERSE_OUTER_LEVELS, is_ordinary(OUTER_LEVELS));
}

//# outer/none
// Scales of one level have no outer scale.
fn outer_of(largest: u32) -> u32 {
    return 0u;
}

//# outer/two_level
// The outer scale, from the largest numerator of the blocks that share it (docs/numerics.md, 3.5).
// needs: choose/outer/{join}, bits/storable
fn outer_of(largest: u32) -> u32 {
    return storable(outer_ratio(largest & 0x7fffffffu), OUTER_STORAGE);
}

//# power/nearest
// The power of two that is nearest to fl(a / L) in its logarithm.
// needs: bits/power, choose/levels
fn power_of(a: u32) -> i32 {
    let scale = per_level(a);
    return exponent_of(scale) + i32(fraction_of(scale) > 0x3504f3u); // the square root of 2
}

fn is_without_power(a: u32) -> bool {
    return a == 0u || per_level(a) == 0u;
}

//# power/threshold
// The one rule of integers for powers of two (docs/numerics.md, 3.4).
// needs: bits/power
// The exponent n of a numerator above 0.
fn power_of(a: u32) -> i32 {
    return exponent_of(a) - EMAX + i32(fraction_of(a) >= THRESHOLD);
}

fn is_without_power(a: u32) -> bool {
    return a == 0u;
}

//# ratio/divided
// needs: choose/levels, choose/chosen
fn ratio_of(r: Range) -> u32 {
    return per_level(numerator(r));
}

//# ratio/signed
// The value of largest magnitude, with its sign, gets the lowest code (ggml's Q4_0).
// needs: choose/chosen, arithmetic/{arithmetic}/quotient, step/step
fn ratio_of(r: Range) -> u32 {
    let value = select(r.low, r.high, (r.high & 0x7fffffffu) >= (r.low & 0x7fffffffu));
    return quotient(value, LOWEST, INVERSE_LOWEST, is_ordinary(LOWEST));
}

//# ratio/two_sided
// A divisor for each end of the range.
// needs: choose/chosen, arithmetic/{arithmetic}/quotient, step/step
fn ratio_of(r: Range) -> u32 {
    let high = quotient(r.high, HIGHEST, INVERSE_HIGHEST, is_ordinary(HIGHEST));
    let low = quotient(r.low, LOWEST, INVERSE_LOWEST, is_ordinary(LOWEST));
    return max(high & 0x7fffffffu, low & 0x7fffffffu);
}

//# zero/float
// fl(qmin - fl(lo / step)) with the step of the stored scale (docs/numerics.md, 3.6).
// needs: statistics/range, step/{step}, arithmetic/{arithmetic}/quotient
// needs: arithmetic/{arithmetic}/reciprocal, arithmetic/{arithmetic}/add, bits/storable
fn choose_zero(r: Range, scale: u32, outer: u32) -> i32 {
    let s = step_of(scale, 0, outer, 0u);
    let found = subtract(LOWEST, quotient(r.low, s.bits, reciprocal(s.bits), s.ordinary));
    return bitcast<i32>(storable_signed(select(found, 0u, is_nan(found)), ZERO_STORAGE));
}

//# zero/integer
// clamp(qmin - R(fl(lo / step)), qmin, qmax) with the step of the stored scale (numerics.md, 3.6).
// needs: statistics/range, step/{step}, arithmetic/{arithmetic}/quotient
// needs: arithmetic/{arithmetic}/reciprocal, rounding/even
fn choose_zero(r: Range, scale: u32, outer: u32) -> i32 {
    let s = step_of(scale, 0, outer, 0u);
    let steps = quotient(r.low, s.bits, reciprocal(s.bits), s.ordinary); // at most 0, or NaN
    let whole = i32(rounded_even(min(steps & MAGNITUDE, 0x4b000000u), 127u));
    return clamp(LOW + select(whole, -LOW, is_nan(steps)), LOW, HIGH);
}

//# zero/none
// Formats without a zero point.
// needs: statistics/range
fn choose_zero(r: Range, scale: u32, outer: u32) -> i32 {
    return 0;
}
