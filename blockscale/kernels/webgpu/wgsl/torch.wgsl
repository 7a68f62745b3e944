// SPDX-License-Identifier: BSD-3-Clause
// Torch's ops on the device: operands of any strides, and what functions of them are made of.

//# bytes
// The first operand, a tensor of bytes that count from 0 or are true or false, as floats.
// needs: torch/address/{address}
@group(0) @binding(x) var<storage, read> x: array<u32>;

fn first(i: u32) -> u32 {
    let at = address(i, 0u);
    return bitcast<u32>(f32(extractBits(x[at / 4u], at % 4u * 8u, 8u)));
}

//# first
// The first operand, a tensor of floats: its element that belongs to element `i` of the result.
// needs: torch/lanes, torch/address/{address}
@group(0) @binding(x) var<storage, read> x: array<u32>;

fn first(i: u32) -> u32 {
    let at = address(i, 0u);
    return widen(extractBits(x[at / LANES], at % LANES * FLOAT_BITS, FLOAT_BITS));
}

//# items
// Elements of any dtype as bytes: a word has LANES of them, or each has WORDS words.
const LANES: u32 = max(32u / ITEM_BITS, 1u);
const WORDS: u32 = max(ITEM_BITS / 32u, 1u);

// The bits of element `at` in a word of its tensor, moved to the lane of element `i`.
fn moved(word: u32, at: u32, i: u32) -> u32 {
    if (ITEM_BITS >= 32u) {
        return word;
    }
    return extractBits(word, at % LANES * ITEM_BITS, min(ITEM_BITS, 32u)) << (i % LANES * ITEM_BITS % 32u);
}

// The word of element `at` from which word `w` of the result takes.
fn word_of(at: u32, w: u32) -> u32 {
    return at * WORDS / LANES + w % WORDS;
}

//# joined
// What the 64 invocations of a workgroup hold becomes one, by a function of two.
// needs: torch_functions/binary/{joining}
var<workgroup> held: array<u32, 64>;

fn joined(mine: u32, lane: u32) -> u32 {
    held[lane] = mine;
    workgroupBarrier();
    for (var others = 32u; others > 0u; others /= 2u) {
        if (lane < others) {
            held[lane] = of_two(held[lane], held[lane + others]);
        }
        workgroupBarrier();
    }
    return held[0];
}

//# lanes
// How many numbers a word has.
// needs: memory/float/{float}
const LANES: u32 = 32u / FLOAT_BITS;

//# number_of_integer
// The first operand, a tensor of whole numbers of 32 or 64 bits, as floats.
// needs: torch/address/{address}, bits/wide
@group(0) @binding(x) var<storage, read> x: array<u32>;

fn first(i: u32) -> u32 {
    let at = address(i, 0u);
    var number = vec2(x[at], u32(bitcast<i32>(x[at]) >> 31u));
    if (ITEM_BITS == 64u) {
        number = vec2(x[at * 2u], x[at * 2u + 1u]);
    }
    if (bitcast<i32>(number.y) < 0) {
        return wide_to_float(wide_sum(~number, vec2(1u, 0u))) | 0x80000000u;
    }
    return wide_to_float(number);
}

//# sums
// The sum and the largest of what the 64 invocations of a workgroup hold.
// needs: torch_functions/binary/maximum
var<workgroup> held: array<f32, 64>;
var<workgroup> largest_held: array<u32, 64>;

fn sum_of(mine: f32, lane: u32) -> f32 {
    workgroupBarrier(); // the sum before has been read
    held[lane] = mine;
    workgroupBarrier();
    for (var others = 32u; others > 0u; others /= 2u) {
        if (lane < others) {
            held[lane] += held[lane + others];
        }
        workgroupBarrier();
    }
    return held[0];
}

fn largest_of(mine: u32, lane: u32) -> u32 {
    largest_held[lane] = mine;
    workgroupBarrier();
    for (var others = 32u; others > 0u; others /= 2u) {
        if (lane < others) {
            largest_held[lane] = of_two(largest_held[lane], largest_held[lane + others]);
        }
        workgroupBarrier();
    }
    return largest_held[0];
}

//# address/straight
// Where elements of operands lie that all lie as the result does.
fn address(i: u32, which: u32) -> u32 {
    return i;
}

//# address/strided
// Where elements of operands lie that are views: element `i` of the result, in row-major order, is
// in operand number `which` at this place. `geometry` has the number of dimensions, the operands'
// offsets and, for each dimension from the last one, its size and the operands' strides.
@group(0) @binding(geometry) var<storage, read> geometry: array<u32>;

fn address(i: u32, which: u32) -> u32 {
    var rest = i;
    var found = geometry[1u + which];
    for (var d = 0u; d < geometry[0]; d++) {
        let row = 1u + OPERANDS + d * (OPERANDS + 1u);
        let size = geometry[row];
        found += rest % size * geometry[row + 1u + which];
        rest /= size;
    }
    return found;
}

//# math/error_function
// erf and 1 - erf, of x >= 0 by its bits. Below 1, erf is x times a polynomial of x^2; above, the
// logarithm of the complement is one of x (least squares in Chebyshev's points, errors 1e-9).
// needs: torch/math/float_of

// erf(x) / x of 0 <= x < 1.
fn odd(x: u32) -> f32 {
    let square = float_of(x) * float_of(x);
    var sum = 7.889122207416221e-05;
    sum = sum * square - 0.0008020842215046287;
    sum = sum * square + 0.005189535208046436;
    sum = sum * square - 0.026854444295167923;
    sum = sum * square + 0.11283600330352783;
    sum = sum * square - 0.3761262595653534;
    return sum * square + 1.1283791065216064;
}

fn complement(x: u32) -> f32 {
    let value = float_of(x);
    if (x < 0x3f800000u) {
        return 1.0 - value * odd(x);
    }
    if (x > 0x41200000u) { // 10
        return 0.0;
    }
    var sum = 2.1686782929464243e-05;
    sum = sum * value - 0.00044133554911240935;
    sum = sum * value + 0.004204557742923498;
    sum = sum * value - 0.02520824410021305;
    sum = sum * value + 0.1084185540676117;
    sum = sum * value + 0.6332198977470398;
    sum = sum * value + 1.1295784711837769;
    return exp(-(sum * value - 0.0001880378695204854));
}

//# math/exponential
// exp, whose values at the ends are ours: a device's own need not be right there.
// needs: torch/math/order, torch/math/float_of
fn exponential(x: u32) -> f32 {
    if (order(x) < -1120927744) { // -104: below it float32 has only 0
        return 0.0;
    }
    if (order(x) > 1118925336) { // 88.72284: above it, only what is infinite
        return float_of(INFINITY);
    }
    return exp(float_of(x));
}

//# math/float_of
// Floats for functions whose result is near, not exact: of the bits, and back.
// needs: bits/parts
fn float_of(x: u32) -> f32 {
    return bitcast<f32>(x);
}

fn bits_of(x: f32) -> u32 {
    return bitcast<u32>(x);
}

//# math/integer_order
// The order of whole numbers of 64 bits, whose first bit is a sign.
fn below(a: vec2<u32>, b: vec2<u32>) -> bool {
    return select(bitcast<i32>(a.y) < bitcast<i32>(b.y), a.x < b.x, a.y == b.y);
}

//# math/logistic
// 1 / (1 + exp(-x)), from exp of what is negative, which does not overflow.
// needs: torch/math/exponential
fn logistic(x: u32) -> f32 {
    let power = exponential(x | 0x80000000u);
    return select(1.0, power, x >> 31u == 1u) / (1.0 + power);
}

//# math/normal
// Whether a device's own float operations are exact on a number, or on what they gave.
fn normal(x: u32) -> bool {
    return ((x >> 23u) & 0xffu) - 1u < 254u;
}

//# math/order
// The order of floats by integers, which drop no NaN and flush nothing.
// needs: bits/parts

// Ascends as the floats do; the same for 0 and -0.
fn order(x: u32) -> i32 {
    let size = bitcast<i32>(x & MAGNITUDE);
    return select(size, -size, x >= SIGN);
}

fn either_nan(a: u32, b: u32) -> bool {
    return is_nan(a) || is_nan(b);
}

//# math/tangent
// tanh. Below 0.6 a polynomial (least squares in Chebyshev's points, error 5e-10), because
// 1 - 2 / (exp(2 x) + 1) has few digits left there.
// needs: torch/math/float_of
fn tangent(x: u32) -> f32 {
    let size = x & 0x7fffffffu;
    let sign = select(1.0, -1.0, x >> 31u == 1u);
    if (size > 0x41200000u) { // 10
        return sign;
    }
    let value = float_of(x);
    let square = value * value;
    if (size < 0x3f19999au) {
        var sum = 0.0023325232323259115;
        sum = sum * square - 0.00838012620806694;
        sum = sum * square + 0.0217804703861475;
        sum = sum * square - 0.053960785269737244;
        sum = sum * square + 0.13333311676979065;
        sum = sum * square - 0.3333333432674408;
        return value + value * (square * sum);
    }
    return sign * (1.0 - 2.0 / (exp(2.0 * abs(value)) + 1.0));
}

//# operand/number
// The second operand is a number.
fn second(i: u32) -> u32 {
    return sizes.number;
}

//# operand/tensor
// The second operand is a tensor.
// needs: torch/lanes, torch/address/{address}
@group(0) @binding(y) var<storage, read> y: array<u32>;

fn second(i: u32) -> u32 {
    let at = address(i, 1u);
    return widen(extractBits(y[at / LANES], at % LANES * FLOAT_BITS, FLOAT_BITS));
}
