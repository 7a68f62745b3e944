// SPDX-License-Identifier: BSD-3-Clause
// Elements: codes of numbers in steps and back (docs/numerics.md, section 4), one at a time, values
// of codes four at a time, and which numbers are in range, so that a gradient passes.

//# binary
// The sign: 1 is +1, 0 is -1.
// needs: bits/parts, step/step
fn encode(y: u32, s: Step, word: u32) -> u32 {
    return u32(y <= SIGN || is_nan(y));
}

fn decode(code: u32, s: Step) -> u32 {
    return select(0xbf800000u, ONE, (code & 1u) == 1u);
}

//# codebook
// Tables of at most 16 values (docs/numerics.md, section 4), by comparisons and selections alone:
// devices keep arrays that are indexed at run time in slow memory. Thresholds are in the order of
// in_order; the missing ones are never reached.
// needs: bits/parts, step/step
fn encode(y: u32, s: Step, word: u32) -> u32 {
    let place = threshold_place(in_order(select(y, 0u, is_nan(y))));
    return (select(ORDER[0], ORDER[1], place >= 8u) >> (4u * (place & 7u))) & 15u;
}

// How many thresholds are below: a search by halves.
fn threshold_place(y: u32) -> u32 {
    let a = y > THRESHOLDS[7];
    let b = y > select(THRESHOLDS[3], THRESHOLDS[11], a);
    let c = y > select(select(THRESHOLDS[1], THRESHOLDS[5], b),
                       select(THRESHOLDS[9], THRESHOLDS[13], b), a);
    let d = y > select(
        select(select(THRESHOLDS[0], THRESHOLDS[2], c), select(THRESHOLDS[4], THRESHOLDS[6], c), b),
        select(select(THRESHOLDS[8], THRESHOLDS[10], c),
               select(THRESHOLDS[12], THRESHOLDS[14], c), b), a);
    return (u32(a) << 3u) | (u32(b) << 2u) | (u32(c) << 1u) | u32(d);
}

// Values are turned by these bits: Mesa 22's compiler takes 0 and -0 for one where it selects.
const TURNED: u32 = 0x01010101u;

fn decode(code: u32, s: Step) -> u32 {
    let masked = code & ((1u << BITS) - 1u);
    let a = (masked & 8u) != 0u;
    let b = (masked & 4u) != 0u;
    let c = (masked & 2u) != 0u;
    let d = (masked & 1u) != 0u;
    let first = select(
        select(select(VALUES[0], VALUES[1], d), select(VALUES[2], VALUES[3], d), c),
        select(select(VALUES[4], VALUES[5], d), select(VALUES[6], VALUES[7], d), c), b);
    let second = select(
        select(select(VALUES[8], VALUES[9], d), select(VALUES[10], VALUES[11], d), c),
        select(select(VALUES[12], VALUES[13], d), select(VALUES[14], VALUES[15], d), c), b);
    return select(first, second, a) ^ TURNED;
}

//# ends
// Tables of which only the ends count: for gradients, which ask for no codes.
// needs: bits/parts, step/step
fn encode(y: u32, s: Step, word: u32) -> u32 {
    return 0u;
}

fn decode(code: u32, s: Step) -> u32 {
    return 0u;
}

//# integer
// Integers and ternary numbers: the code is the value (docs/numerics.md, section 4).
// needs: bits/parts, rounding/{rounding}, zero_point/{zero}
const MASK: u32 = 0xffffffffu >> (32u - BITS);

fn encode(y: u32, s: Step, word: u32) -> u32 {
    let t = moved(y, s);
    let size = min(t & MAGNITUDE, 0x4b000000u); // beyond 2^23 all saturate
    let whole = i32(rounded(size, 127u, t >= SIGN, word));
    let steps = select(select(whole, -whole, t >= SIGN), 0, is_nan(t));
    return u32(clamp(placed(steps, t, s), LOW, HIGH)) & MASK;
}

fn decode(code: u32, s: Step) -> u32 {
    let value = select(i32(code & MASK), i32(code << (32u - BITS)) >> (32u - BITS), SIGNED);
    return unplaced(value, s);
}

//# large_codebook
// Tables of more than 16 values, in a buffer: thresholds in the order of in_order and one more,
// the codes by place, the values by code, 2^BITS of each.
// needs: bits/parts, step/step
@group(0) @binding(table) var<storage, read> table: array<u32>;

fn encode(y: u32, s: Step, word: u32) -> u32 {
    let wanted = in_order(select(y, 0u, is_nan(y)));
    var place = 0u;
    for (var width = 1u << (BITS - 1u); width > 0u; width >>= 1u) {
        place += select(0u, width, table[place + width - 1u] < wanted);
    }
    return table[(1u << BITS) + place];
}

fn decode(code: u32, s: Step) -> u32 {
    return table[(2u << BITS) + (code & ((1u << BITS) - 1u))];
}

//# minifloat
// Small floating-point and logarithmic numbers (docs/numerics.md, section 4).
// needs: bits/parts, rounding/{rounding}, element/minifloat_numbers, step/step
const ELEMENT = Minifloat(BITS, MBITS, LEAST, LARGEST_VALUE, MAX_CODE, NAN_CODE, INFINITY_CODE);

fn encode(y: u32, s: Step, word: u32) -> u32 {
    if (is_nan(y)) {
        return NAN_CODE;
    }
    let size = min(y & MAGNITUDE, LARGEST_VALUE);
    let field = max(size >> 23u, LEAST);
    var steps = 0u;
    if (LEAST < 32u) { // subnormal float32 count
        steps = rounded_by_shift(size, field - MBITS, y >= SIGN, word);
    } else {
        steps = rounded(size, field - MBITS, y >= SIGN, word);
    }
    return (((field - LEAST) << MBITS) + steps) | ((y >> 31u) << (BITS - 1u));
}

fn decode(code: u32, s: Step) -> u32 {
    return minifloat_value(code, ELEMENT);
}

//# minifloat_numbers
// A sign, an exponent and a mantissa (docs/numerics.md, 1.1).
struct Minifloat {
    bits: u32,
    mbits: u32,
    least: u32, // the exponent field that a float32 has in its first binade
    largest: u32, // its largest value
    max_code: u32, // and the magnitude code of it
    nan: u32, // the code that is written for NaN: that of 0 where there is none
    infinity: u32, // the magnitude code that is read as infinity; 256 for none
}

fn minifloat_value(code: u32, f: Minifloat) -> u32 {
    let size = code & ((1u << (f.bits - 1u)) - 1u);
    let sign = (code >> (f.bits - 1u)) << 31u;
    var value = (size << (23u - f.mbits)) + ((f.least - 1u) << 23u);
    if (size < (1u << f.mbits)) { // a whole number of the smallest value
        let smallest = 127u + f.mbits - f.least;
        value = select(bitcast<u32>(f32(size)) - (smallest << 23u), 0u, size == 0u);
    }
    if (size > f.max_code) {
        value = select(0x7fc00000u, 0x7f800000u, size == f.infinity);
    }
    return sign | value;
}

//# in_range/binary
// needs: bits/parts
// BinaryNet's clipped gradient (docs/numerics.md, 5).
fn inside(y: u32, s: Step) -> bool {
    return (y & MAGNITUDE) <= ONE;
}

//# in_range/codebook
// needs: bits/parts
// Whether a number lies between the smallest and the largest value of the table: not LOWEST, which
// is 0 where all values are above.
fn inside(y: u32, s: Step) -> bool {
    return !is_nan(y) && !less(y, LEAST_VALUE) && !less(HIGHEST, y);
}

//# in_range/integer
// needs: element/integer, rounding/{rounding}, zero_point/{zero}
// Whether an integer does not saturate: a gradient passes (docs/numerics.md, 5).
fn inside(steps: u32, s: Step) -> bool {
    let y = moved(steps, s);
    let size = min(y & MAGNITUDE, 0x4b000000u); // beyond 2^23 all saturate
    let whole = i32(rounded(size, 127u, y >= SIGN, 0u));
    let code = placed(select(whole, -whole, y >= SIGN), y, s);
    let number = is_finite(y) && !is_nan(steps); // which float zero points take for 0
    return number && code >= LOW && code <= HIGH;
}

//# in_range/minifloat
// needs: element/minifloat, rounding/{rounding}
// Whether a number does not saturate: in the binade of the largest value, by its units there.
fn inside(y: u32, s: Step) -> bool {
    let size = y & MAGNITUDE;
    let field = max(size >> 23u, LEAST);
    let top = LARGEST_VALUE >> 23u;
    if (field != top) {
        return field < top;
    }
    let most = ((LARGEST_VALUE & 0x7fffffu) | 0x800000u) >> (23u - MBITS);
    return rounded_by_shift(size, field - MBITS, y >= SIGN, 0u) <= most;
}

//# values/codebook
// Values from a table in the workgroup's memory, whose 16 words lie in as many banks.
// needs: element/{element}, hardware/{hardware}
@group(0) @binding(value_table) var<storage, read> value_table: array<u32>;
var<workgroup> values_of_codes: array<u32, 16>;

struct Decoded {
    values: vec4<u32>,
    sure: bool, // they are right, and normal or 0
}

fn prepare_values(lane: u32) {
    if (lane < 16u) {
        values_of_codes[lane] = value_table[lane];
    }
    workgroupBarrier();
}

fn four_decoded(codes: vec4<u32>, s: Step) -> Decoded {
    let found = vec4(values_of_codes[codes.x], values_of_codes[codes.y], values_of_codes[codes.z],
                     values_of_codes[codes.w]);
    return Decoded(found, !FAR_VALUES);
}

//# values/each
// Values one by one.
// needs: element/{element}, hardware/{hardware}
struct Decoded {
    values: vec4<u32>,
    sure: bool, // they are right, and normal or 0
}

fn four_decoded(codes: vec4<u32>, s: Step) -> Decoded {
    let found = vec4(decode(codes.x, s), decode(codes.y, s), decode(codes.z, s),
                     decode(codes.w, s));
    return Decoded(found, !FAR_VALUES);
}

fn prepare_values(lane: u32) {}

//# values/integer
// Codes of integers behind the bits of 2^23 are floats, of which that is subtracted.
// needs: element/{element}, zero_point/{zero}, hardware/{hardware}
struct Decoded {
    values: vec4<u32>,
    sure: bool, // they are right, and normal or 0
}

fn four_decoded(codes: vec4<u32>, s: Step) -> Decoded {
    let turned = select(0u, 1u << (BITS - 1u), SIGNED); // so that they ascend from 0
    let floats = ((codes ^ vec4(turned)) & vec4(MASK)) | vec4(0x4b000000u);
    let least = SIGN | u32(0x4b000000 + i32(turned) + zero_of(s)); // negative
    return Decoded(four_sums(floats, vec4(least)), fits_zero(s));
}

fn prepare_values(lane: u32) {}

//# values/minifloat
// The bits of a code moved to where a float32 has them are right but in the first binade, which
// starts at 0 and is twice as steep.
// needs: element/{element}, hardware/{hardware}
struct Decoded {
    values: vec4<u32>,
    sure: bool, // they are right, and normal or 0
}

fn four_decoded(codes: vec4<u32>, s: Step) -> Decoded {
    let size = codes & vec4((1u << (BITS - 1u)) - 1u);
    let moved = (size << vec4(23u - MBITS)) + vec4((LEAST - 1u) << 23u);
    let steep = four_sums(four_products(moved, vec4(0x40000000u)), vec4(SIGN | (LEAST << 23u)));
    let sign = (codes << vec4(32u - BITS)) & vec4(SIGN);
    return Decoded(four_least(moved, steep) | sign, largest_of_four(size) <= MAX_CODE);
}

fn prepare_values(lane: u32) {}
