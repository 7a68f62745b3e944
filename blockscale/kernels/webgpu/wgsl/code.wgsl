// SPDX-License-Identifier: BSD-3-Clause
// Codes of four numbers and values of four codes. Codes are first approximated by a product with the
// step's reciprocal (`approximate/…`), then checked: what is near a tie is computed exactly.

//# fours
// Codes and values, four at a time: together where that is sure, else one by one. `near_products`
// and `code_of_one` are those of code/{how}.
// needs: zero_point/offset/{offset}, code/approximate/{approximate}, code/value
fn four_codes(x: vec4<u32>, s: Step, words: vec4<u32>) -> vec4<u32> {
    let quick = approximate_codes(near_products(without_offsets(x, s), s), s, words);
    if (quick.sure) {
        return quick.codes;
    }
    if (!QUICK) {
        return vec4(code_of_one(x.x, s, words.x), code_of_one(x.y, s, words.y),
                    code_of_one(x.z, s, words.z), code_of_one(x.w, s, words.w));
    }
    var codes = vec4(0u);
    for (var i = 0u; i < 4u; i++) {
        codes[i] = code_of_one(x[i], s, words[i]);
    }
    return codes;
}

fn code_of(x: u32, s: Step, word: u32) -> u32 {
    let quick = approximate_codes(near_products(vec4(without_offset(x, s)), s), s, vec4(word));
    if (quick.sure) {
        return quick.codes.x;
    }
    return code_of_one(x, s, word);
}

fn code_of_one(x: u32, s: Step, word: u32) -> u32 {
    return encode(in_steps(x, s), s, word);
}

//# product
// Elements that are multiplied by the reciprocal of their step.
// needs: arithmetic/{arithmetic}/quick_multiply, zero_point/offset/{offset}, element/{element}
// needs: code/fours
fn in_steps(x: u32, s: Step) -> u32 {
    let moved = without_offset(x, s);
    if (s.ordinary && (moved << 1u) == 0u) { // its reciprocal is finite
        return moved ^ (s.inverse & SIGN);
    }
    return quick_multiply(moved, s.inverse);
}

fn near_products(x: vec4<u32>, s: Step) -> vec4<u32> {
    return four_products(x, vec4(s.inverse));
}

//# quotient
// Elements that are divided by their step.
// needs: arithmetic/{arithmetic}/quotient, zero_point/offset/{offset}, element/{element}
// needs: code/fours
fn in_steps(x: u32, s: Step) -> u32 {
    return quotient(without_offset(x, s), s.bits, s.inverse, s.ordinary);
}

fn near_products(x: vec4<u32>, s: Step) -> vec4<u32> {
    return four_products(x, vec4(s.inverse));
}

//# shift
// Elements whose step is a power of two: their exponent changes.
// needs: arithmetic/{arithmetic}/divide, zero_point/offset/{offset}, element/{element}, code/fours
fn in_steps(x: u32, s: Step) -> u32 {
    return shifted(without_offset(x, s), s);
}

fn shifted(x: u32, s: Step) -> u32 {
    let field = (x >> 23u) & 0xffu;
    if (max(field - 1u, field - s.inverse - 1u) < 254u) { // normal before and after
        return x - (s.inverse << 23u);
    }
    if (s.ordinary && (x << 1u) == 0u) {
        return x;
    }
    return divide(x, s.bits);
}

fn near_products(x: vec4<u32>, s: Step) -> vec4<u32> {
    return four_products(x, vec4(0x7f000000u - s.bits)); // of an ordinary step
}

//# value
// needs: hardware/{hardware}, arithmetic/{arithmetic}/quick_multiply, zero_point/offset/{offset}
// needs: element/{element}, element/values/{values}
// What codes stand for. Values of most elements lie so that products with an ordinary step are
// normal; not where FAR_VALUES says so.
fn four_values(codes: vec4<u32>, s: Step) -> vec4<u32> {
    let found = four_decoded(codes, s);
    if (s.ordinary && found.sure) {
        return with_offsets(four_products(found.values, vec4(s.bits)), s);
    }
    var values = vec4(0u);
    for (var i = 0u; i < 4u; i++) {
        values[i] = value_of(codes[i], s);
    }
    return values;
}

fn value_of(code: u32, s: Step) -> u32 {
    let value = decode(code, s);
    if (s.ordinary && !FAR_VALUES) {
        return with_offset(product(value, s.bits), s);
    }
    return with_offset(quick_multiply(value, s.bits), s);
}

//# approximate/binary
// Signs. Not of zeros, which may be flushed numbers.
// needs: code/approximate/quick
fn approximate_codes(near: vec4<u32>, s: Step, words: vec4<u32>) -> Approximate {
    let sure = s.ordinary && finite_together(near) && smallest_of_four(near << vec4(1u)) > 0u;
    return Approximate(vec4(1u) - (near >> vec4(31u)), sure);
}

//# approximate/codebook
// Tables of at most 16 values: the search of element/codebook, and how near a threshold comes.
// needs: code/approximate/quick, element/codebook
fn approximate_codes(near: vec4<u32>, s: Step, words: vec4<u32>) -> Approximate {
    let y = select(near | vec4(SIGN), ~near, near >= vec4(SIGN)); // in_order
    let first = vec4(THRESHOLDS[7]);
    let a = y > first;
    let second = select(vec4(THRESHOLDS[3]), vec4(THRESHOLDS[11]), a);
    let b = y > second;
    let third = select(select(vec4(THRESHOLDS[1]), vec4(THRESHOLDS[5]), b),
                       select(vec4(THRESHOLDS[9]), vec4(THRESHOLDS[13]), b), a);
    let c = y > third;
    let below = select(select(vec4(THRESHOLDS[0]), vec4(THRESHOLDS[2]), c),
                       select(vec4(THRESHOLDS[4]), vec4(THRESHOLDS[6]), c), b);
    let above = select(select(vec4(THRESHOLDS[8]), vec4(THRESHOLDS[10]), c),
                       select(vec4(THRESHOLDS[12]), vec4(THRESHOLDS[14]), c), b);
    let last = select(below, above, a);
    let place = select(vec4(0u), vec4(8u), a) + select(vec4(0u), vec4(4u), b)
        + select(vec4(0u), vec4(2u), c) + select(vec4(0u), vec4(1u), y > last);
    let nearest = min(min(y - first + vec4(3u), y - second + vec4(3u)),
                      min(y - third + vec4(3u), y - last + vec4(3u)));
    let order = select(vec4(ORDER[0]), vec4(ORDER[1]), a);
    let codes = (order >> ((place & vec4(7u)) << vec4(2u))) & vec4(15u);
    let sure = s.ordinary && finite_together(near) && smallest_of_four(nearest) > 6u;
    return Approximate(codes, sure);
}

//# approximate/integer
// Integers, to nearest, ties to even. Beside 1.5 * 2^23 the neighbours of a float32 are whole.
// needs: code/approximate/quick, zero_point/{zero}
const QUICK_FRACTION: u32 = select(23u, 22u, HAS_ZERO || !SIGNED) - BITS; // bits, beside ...
const QUICK_CENTER: u32 = ((150u - QUICK_FRACTION) << 23u) + 0x400000u; // 1.5 * 2^(23 - those)
// What lies within two such units below and above a tie has a fraction of at most four there.
const QUICK_TIE: u32 = QUICK_CENTER + (1u << (QUICK_FRACTION - 1u)) + 2u;

fn approximate_codes(near: vec4<u32>, s: Step, words: vec4<u32>) -> Approximate {
    let low = bitcast<u32>(f32(LOW - zero_of(s)));
    let high = bitcast<u32>(f32(HIGH - zero_of(s)));
    let bounded = four_least(four_most(near, vec4(low)), vec4(high));
    let codes = (four_sums(bounded, vec4(0x4b400000u)) + vec4(u32(zero_of(s)))) & vec4(MASK);
    var sure = s.ordinary && finite_together(near) && fits_zero(s);
    if (!EXACT_PRODUCT) {
        let rest = four_sums(bounded, vec4(QUICK_TIE)) & vec4((1u << QUICK_FRACTION) - 1u);
        sure = sure && smallest_of_four(rest) > 4u;
    }
    return Approximate(codes, sure);
}

//# approximate/minifloat
// Minifloats, to nearest, ties to even. `binade` is the power of two below a number, of the first
// binade for subnormals too: beside 2^(23 - MBITS) of it the neighbours are one code apart.
// needs: code/approximate/quick
const QUICK_FRACTION: u32 = 22u - MBITS; // bits beside twice the binade
// 2, half a code, and two units: what lies within two units of a tie has a fraction of at most four.
const QUICK_TIE: u32 = 0x40000000u + (1u << (QUICK_FRACTION - 1u)) + 2u;

fn approximate_codes(near: vec4<u32>, s: Step, words: vec4<u32>) -> Approximate {
    let bounded = four_least(near & vec4(MAGNITUDE), vec4(LARGEST_VALUE));
    let binade = max(bounded & vec4(INFINITY), vec4(LEAST << 23u));
    let magic = binade + vec4((23u - MBITS) << 23u);
    let steps = four_sums(bounded, magic) - magic;
    let size = (binade >> vec4(23u - MBITS)) + steps - vec4(LEAST << MBITS);
    let codes = size | ((near >> vec4(32u - BITS)) & vec4(1u << (BITS - 1u)));
    var sure = s.ordinary && finite_together(near);
    if (!EXACT_PRODUCT) {
        let beside = four_sums(bounded, four_products(binade, vec4(QUICK_TIE)));
        let rest = beside & vec4((1u << QUICK_FRACTION) - 1u);
        sure = sure && smallest_of_four(rest) > 4u;
    }
    return Approximate(codes, sure);
}

//# approximate/none
// Codes that are never found quickly.
// needs: code/approximate/quick
fn approximate_codes(near: vec4<u32>, s: Step, words: vec4<u32>) -> Approximate {
    return Approximate(vec4(0u), false);
}

//# approximate/quick
// Codes that are found from products which are at most an ulp off, and whether correct quotients
// would have the same: then nothing else need be computed.
// needs: hardware/{hardware}, step/step, bits/parts
struct Approximate {
    codes: vec4<u32>,
    sure: bool,
}

//# approximate/stochastic_integer
// Integers, stochastically: |y| + 1 - u, rounded down, beside a power of two where the neighbours of
// a float32 are 2^-QUICK_FRACTION apart. Not sure within four of those from a whole number.
// needs: code/approximate/quick, zero_point/{zero}
const QUICK_FRACTION: u32 = 22u - BITS;
const QUICK_CENTER: u32 = (128u + BITS) << 23u; // 2^(BITS + 1)
const QUICK_START: u32 = QUICK_CENTER + (2u << QUICK_FRACTION) + 4u;

fn approximate_codes(near: vec4<u32>, s: Step, words: vec4<u32>) -> Approximate {
    let low = bitcast<u32>(f32(LOW - zero_of(s)));
    let high = bitcast<u32>(f32(HIGH - zero_of(s)));
    let bounded = four_least(four_most(near, vec4(low)), vec4(high));
    let negative = vec4(SIGN | ONE) | (words >> vec4(1u)); // -(1 + u)
    let moved = four_sums(bounded & vec4(MAGNITUDE), four_sums(vec4(QUICK_START), negative));
    let whole = (moved - vec4(QUICK_CENTER)) >> vec4(QUICK_FRACTION);
    let steps = select(whole, vec4(0u) - whole, bounded >= vec4(SIGN));
    let codes = (steps + vec4(u32(zero_of(s)))) & vec4(MASK);
    let rest = moved & vec4((1u << QUICK_FRACTION) - 1u);
    let sure = s.ordinary && finite_together(near) && fits_zero(s);
    return Approximate(codes, sure && smallest_of_four(rest) > 8u);
}

//# approximate/stochastic_minifloat
// Minifloats, stochastically: |y| and (1 - u) codes, rounded down, beside twice the binade (as in
// code/approximate/minifloat). Not sure within four units of a code.
// needs: code/approximate/quick
const QUICK_FRACTION: u32 = 22u - MBITS; // bits beside twice the binade

fn approximate_codes(near: vec4<u32>, s: Step, words: vec4<u32>) -> Approximate {
    let bounded = four_least(near & vec4(MAGNITUDE), vec4(LARGEST_VALUE));
    let binade = max(bounded & vec4(INFINITY), vec4(LEAST << 23u));
    let rest_of_one = four_sums(vec4(0x40000000u), vec4(SIGN | ONE) | (words >> vec4(1u))); // 1 - u
    let part = four_products(rest_of_one, vec4((127u - MBITS) << 23u));
    let times = four_sums(vec4(0x40000004u), part); // 2, four units, and that part
    let moved = four_sums(bounded, four_products(binade, times));
    let steps = (moved - binade - vec4(0x800000u)) >> vec4(QUICK_FRACTION);
    let size = (binade >> vec4(23u - MBITS)) + steps - vec4(LEAST << MBITS);
    let codes = size | ((near >> vec4(32u - BITS)) & vec4(1u << (BITS - 1u)));
    let rest = moved & vec4((1u << QUICK_FRACTION) - 1u);
    let sure = s.ordinary && finite_together(near) && smallest_of_four(rest) > 8u;
    return Approximate(codes, sure);
}
