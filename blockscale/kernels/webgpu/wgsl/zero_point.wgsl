// SPDX-License-Identifier: BSD-3-Clause
// Zero points and offsets of codes: none, integers, or floats.

//# float
// Zero points that are floats, which are added before rounding (docs/numerics.md, 4 and 5).
// needs: step/step, arithmetic/{arithmetic}/add, bits/integer
// Whether numbers of steps beyond the codes' range saturate, and them with a zero point that does.
fn fits_zero(s: Step) -> bool {
    return false;
}

const HAS_ZERO: bool = true;

// A zero point that fits.
fn zero_of(s: Step) -> i32 {
    return 0;
}

fn moved(y: u32, s: Step) -> u32 {
    return add(select(y, 0u, is_nan(y)), bitcast<u32>(s.zero));
}

fn placed(steps: i32, y: u32, s: Step) -> i32 {
    return steps;
}

fn unplaced(code: i32, s: Step) -> u32 {
    return subtract(to_float(code), bitcast<u32>(s.zero));
}

//# integer
// Integer zero points, which are added after rounding (docs/numerics.md, 4 and 5).
// needs: step/step, arithmetic/{arithmetic}/add, bits/integer
const LARGE_ZERO: u32 = 1u << 22u; // below it, nothing of a sum with a code is rounded

// Whether numbers of steps beyond the codes' range saturate, and them with a zero point that does.
fn fits_zero(s: Step) -> bool {
    return s.zero >= LOW && s.zero <= HIGH;
}

const HAS_ZERO: bool = true;

// A zero point that fits.
fn zero_of(s: Step) -> i32 {
    return s.zero;
}

fn moved(y: u32, s: Step) -> u32 {
    return y;
}

// steps: R(y), at most 2^23 in magnitude
fn placed(steps: i32, y: u32, s: Step) -> i32 {
    if (u32(abs(s.zero)) < LARGE_ZERO) {
        return steps + s.zero;
    }
    let large = (y & MAGNITUDE) >= 0x4b000000u && !is_nan(y); // from 2^23 on y is whole
    return to_integer(add(select(to_float(steps), y, large), to_float(s.zero)), 1 << 23u);
}

// fl(code - zero)
fn unplaced(code: i32, s: Step) -> u32 {
    if (u32(abs(s.zero)) < LARGE_ZERO) {
        return bitcast<u32>(f32(code - s.zero));
    }
    return subtract(to_float(code), to_float(s.zero));
}

//# none
// Formats without a zero point.
// needs: step/step
// Whether numbers of steps beyond the codes' range saturate, and them with a zero point that does.
fn fits_zero(s: Step) -> bool {
    return true;
}

const HAS_ZERO: bool = false;

// A zero point that fits.
fn zero_of(s: Step) -> i32 {
    return 0;
}

fn moved(y: u32, s: Step) -> u32 {
    return y;
}

fn placed(steps: i32, y: u32, s: Step) -> i32 {
    return steps;
}

fn unplaced(code: i32, s: Step) -> u32 {
    return bitcast<u32>(f32(code));
}

//# offset/added
// An offset of the block, which is subtracted first and added last: each is rounded by itself.
// needs: step/step, arithmetic/{arithmetic}/add
fn without_offset(x: u32, s: Step) -> u32 {
    return subtract(x, s.offset);
}

fn with_offset(value: u32, s: Step) -> u32 {
    return add(value, s.offset);
}

fn without_offsets(x: vec4<u32>, s: Step) -> vec4<u32> {
    return vec4(without_offset(x.x, s), without_offset(x.y, s), without_offset(x.z, s),
                without_offset(x.w, s));
}

fn with_offsets(values: vec4<u32>, s: Step) -> vec4<u32> {
    return vec4(with_offset(values.x, s), with_offset(values.y, s), with_offset(values.z, s),
                with_offset(values.w, s));
}

//# offset/none
// Formats without an offset.
// needs: step/step
fn without_offset(x: u32, s: Step) -> u32 {
    return x;
}

fn with_offset(value: u32, s: Step) -> u32 {
    return value;
}

fn without_offsets(x: vec4<u32>, s: Step) -> vec4<u32> {
    return x;
}

fn with_offsets(values: vec4<u32>, s: Step) -> vec4<u32> {
    return values;
}
