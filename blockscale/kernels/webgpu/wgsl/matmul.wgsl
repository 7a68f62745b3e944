// SPDX-License-Identifier: BSD-3-Clause
// Products with quantized weights: how both factors are read, weights decoded and results written.

//# block
// What the quick way takes of a block, as floats; doubt: one is too large for it, or no number.
// needs: matmul/codes, matmul/step/{fast_step}
struct Block { step: f32, zero: f32, offset: f32, doubt: bool }

fn prepared_block(block: u32) -> Block {
    let step = fast_step(block);
    var zero = f32(step.zero);
    var doubt = u32(step.zero + i32(ZERO_LIMIT)) > 2u * ZERO_LIMIT;
    if (FLOAT_ZERO) {
        zero = bitcast<f32>(step.zero);
        doubt = (u32(step.zero) & 0x7fffffffu) > bitcast<u32>(f32(ZERO_LIMIT));
    }
    doubt |= (step.bits & 0x7fffffffu) > STEP_LIMIT || (step.offset & 0x7fffffffu) > VALUE_LIMIT;
    let factor = bitcast<f32>(step.bits) * bitcast<f32>(VALUE_FACTOR);
    return Block(factor, zero, bitcast<f32>(step.offset), doubt);
}

// The weights that values stand for, in a block with an offset. A product that feeds a sum is not
// rounded by itself on most devices, unless an integer operation stands between whose result nobody
// can foresee.
fn shifted_weights(values: vec4<f32>, step: f32, offset: f32) -> vec4<f32> {
    let nothing = u32(arrayLength(&codes) == 0u);
    return bitcast<vec4<f32>>(bitcast<vec4<u32>>(values * step) ^ vec4(nothing)) + offset;
}

//# codes
// A weight's codes of BITS <= 8, in rows of sizes.row_bytes bytes, and the step of each block.
// needs: stored_params/step, code/value
@group(0) @binding(codes) var<storage, read> codes: array<u32>;
const CODE_MASK: u32 = (1u << BITS) - 1u;

// 32 bits from a byte's bit on.
fn bits_from(place: u32, bit: u32) -> u32 {
    let shift = place % 4u * 8u + bit;
    let word = place / 4u;
    return codes[word] >> shift | codes[word + 1u] << 1u << (31u - shift);
}

fn code_of_place(n: u32, k: u32) -> u32 {
    let bit = k * BITS;
    return bits_from(n * sizes.row_bytes + bit / 8u, bit % 8u) & CODE_MASK;
}

// The codes of columns 4 quad … 4 quad + 3.
fn codes_of(n: u32, quad: u32) -> vec4<u32> {
    let bit = quad * (4u * BITS);
    let four = bits_from(n * sizes.row_bytes + bit / 8u, bit % 8u);
    return vec4(four, four >> BITS, four >> (2u * BITS), four >> (3u * BITS)) & vec4(CODE_MASK);
}

// Four codes, a byte each.
fn four_bytes(four: vec4<u32>) -> u32 {
    return four.x | four.y << 8u | four.z << 16u | four.w << 24u;
}

// Of output n of those that are bound, column k.
fn block_of(n: u32, k: u32) -> u32 {
    return (sizes.first + n) / BLOCK_ROWS * sizes.blocks + k / BLOCK_SIZE;
}

// The weight itself, to the bit.
fn weight_of(n: u32, k: u32) -> u32 {
    return value_of(code_of_place(n, k), step_at(block_of(n, k)));
}

//# exact
// The sum of products by integers alone: for subnormal, huge and missing numbers.
// needs: arithmetic/{arithmetic}/multiply, arithmetic/{arithmetic}/add, matmul/left
// needs: matmul/right/{right}
fn exact_sum(batch: u32, m: u32, n: u32, start: u32, stride: u32) -> u32 {
    var sum = 0u;
    for (var k = start; k < sizes.inner; k += stride) {
        let a = left_of(batch, m, k);
        let b = right_of(batch, n, k);
        let nothing = (a & 0x7fffffffu) == 0u || (b & 0x7fffffffu) == 0u;
        if (!nothing || max(a & 0x7fffffffu, b & 0x7fffffffu) >= 0x7f800000u) {
            sum = add(sum, multiply(a, b));
        }
    }
    return sum;
}

//# left
// The left factor: numbers as the bits of float32. LEFT_STORAGE: as in bits/storage.
// needs: bits/storage
@group(0) @binding(x) var<storage, read> x: array<u32>;

// Of row m, column k, in the batch's matrix of this number.
fn left_of(batch: u32, m: u32, k: u32) -> u32 {
    let place = sizes.left_start + batch * sizes.left_batch + m * sizes.left_row
        + k * sizes.left_column;
    if (LEFT_STORAGE == 0u) {
        return x[place];
    }
    return widened(x[place / 2u] >> (place % 2u * 16u) & 0xffffu, LEFT_STORAGE);
}

//# quad
// Four numbers that are neighbours along k; doubt: one is too large for the quick way, or no number.
struct Quad { values: vec4<f32>, doubt: bool }

//# result
// Where results go. RESULT_STORAGE: as in bits/storage. Two numbers of 16 bits share a word: then
// pairs begin at even places.
// needs: bits/storage
@group(0) @binding(y) var<storage, read_write> y: array<u32>;

fn store_pair(place: u32, first: u32, second: u32, both: bool) {
    if (RESULT_STORAGE != 0u) {
        y[place / 2u] = narrowed(first, RESULT_STORAGE) | narrowed(second, RESULT_STORAGE) << 16u;
        return;
    }
    y[place] = first;
    if (both) {
        y[place + 1u] = second;
    }
}

//# trust
// Whether a quick sum can stand: what the hardware flushes to zero is less than a unit of a number
// that is not small, and no number that is not finite hides in it.
fn trusted(y: u32) -> bool {
    let size = y & 0x7fffffffu;
    return size >= sizes.least && size < 0x7f800000u;
}

//# bias/added
// A number is added to each output. BIAS_STORAGE: as in bits/storage.
// needs: arithmetic/{arithmetic}/add, bits/storage
@group(0) @binding(bias) var<storage, read> bias: array<u32>;

fn with_bias(n: u32, y: u32) -> u32 {
    if (BIAS_STORAGE == 0u) {
        return add(y, bias[n]);
    }
    return add(y, widened(bias[n / 2u] >> (n % 2u * 16u) & 0xffffu, BIAS_STORAGE));
}

//# bias/none
// Products to which nothing is added.
fn with_bias(n: u32, y: u32) -> u32 {
    return y;
}

//# decode/halves
// Minifloats of at most five exponent bits: their bits, moved, are those of a float16 that is
// VALUE_FACTOR times smaller. Devices that widen subnormal float16 take this way (matmul/halves.py).
// needs: matmul/decode/unit
const HALF_SHIFT: u32 = 10u - MBITS; // of a magnitude to its place in a float16
const HALF_MAGNITUDE: u32 = ((1u << (BITS - 1u)) - 1u) << HALF_SHIFT;
const HALF_MAGNITUDES: u32 = HALF_MAGNITUDE | (HALF_MAGNITUDE << 16u);

fn prepare_decode(lane: u32) {}

// Two codes, each at the upper end of 16 bits -> their values.
fn pair_of(codes: u32) -> vec2<f32> {
    let size = (codes >> (6u + MBITS - BITS)) & HALF_MAGNITUDES;
    return unpack2x16float((codes & 0x80008000u) | size);
}

fn values_of(patterns: vec4<u32>, zero: f32) -> vec4<f32> {
    let first = (patterns.x | patterns.y << 16u) << (16u - BITS);
    let second = (patterns.z | patterns.w << 16u) << (16u - BITS);
    return vec4(pair_of(first), pair_of(second));
}

fn unit_of(word: u32, zero: f32) -> Unit {
    if (BITS == 8u) {
        let even = pair_of(word << 8u);
        let odd = pair_of(word);
        return Unit(vec4(even.x, odd.x, even.y, odd.y), vec4<f32>());
    }
    let p0 = pair_of(word << 12u);
    let p1 = pair_of(word << 8u);
    let p2 = pair_of(word << 4u);
    let p3 = pair_of(word);
    return Unit(vec4(p0.x, p1.x, p2.x, p3.x), vec4(p0.y, p1.y, p2.y, p3.y));
}

// Whether one of four codes, a byte each, is NaN where a float16 would not be.
fn any_reserved(word: u32) -> bool {
    return ONE_NAN && (((word & 0x7f7f7f7fu) + 0x01010101u) & 0x80808080u) != 0u;
}

//# decode/integer
// Integers as floats: behind 2^23 a float's last bits are an integer.
// needs: matmul/decode/unit
const PLACE_OF_ZERO: u32 = 0x800000u | (u32(SIGNED) << (BITS - 1u));

fn prepare_decode(lane: u32) {}

fn values_of(patterns: vec4<u32>, zero: f32) -> vec4<f32> {
    let behind = bitcast<vec4<f32>>(patterns ^ vec4(0x4b000000u | (PLACE_OF_ZERO & 0x7fffffu)));
    if (FLOAT_ZERO) {
        return (behind - f32(PLACE_OF_ZERO)) - zero;
    }
    return behind - (f32(PLACE_OF_ZERO) + zero); // both are integers
}

fn unit_of(word: u32, zero: f32) -> Unit {
    return split_unit(word, zero);
}

fn any_reserved(word: u32) -> bool {
    return false;
}

//# decode/table
// The values of all codes, at hand in the workgroup's memory.
// needs: matmul/decode/unit
@group(0) @binding(values) var<storage, read> values: array<u32>;
var<workgroup> table: array<f32, 1u << BITS>;

fn prepare_decode(lane: u32) {
    if (lane < 1u << BITS) {
        table[lane] = bitcast<f32>(values[lane]);
    }
}

fn values_of(patterns: vec4<u32>, zero: f32) -> vec4<f32> {
    return vec4(table[patterns.x], table[patterns.y], table[patterns.z], table[patterns.w]) - zero;
}

fn unit_of(word: u32, zero: f32) -> Unit {
    return split_unit(word, zero);
}

fn any_reserved(word: u32) -> bool {
    return false; // they are NaN in the table
}

//# decode/unit
// The values of a word's codes: four codes of eight bits, or eight of four.
struct Unit { low: vec4<f32>, high: vec4<f32> }

fn split_unit(word: u32, zero: f32) -> Unit {
    let places = vec4(0u, 1u, 2u, 3u) * BITS;
    let mask = vec4((1u << BITS) - 1u);
    let low = values_of((vec4(word) >> places) & mask, zero);
    if (BITS == 8u) {
        return Unit(low, low);
    }
    return Unit(low, values_of((vec4(word >> 16u) >> places) & mask, zero));
}

//# right/codes
// The right factor as codes: a weight [n, k].
// needs: matmul/quad, matmul/block, matmul/decode/{decode}
fn right_of(batch: u32, n: u32, k: u32) -> u32 {
    return weight_of(n, k);
}

fn prepare_right(lane: u32) {
    prepare_decode(lane);
}

// Four neighbours along k, all of one block.
fn right_quad(batch: u32, n: u32, quad: u32) -> Quad {
    let block = prepared_block(block_of(n, quad * 4u));
    let patterns = codes_of(n, quad);
    let found = values_of(patterns, block.zero);
    let doubt = block.doubt | any_reserved(four_bytes(patterns));
    if (HAS_OFFSET) {
        return Quad(shifted_weights(found, block.step, block.offset), doubt);
    }
    return Quad(found * block.step, doubt);
}

//# right/floats
// The right factor as floats. RIGHT_STORAGE: as in bits/storage.
// needs: bits/storage, matmul/quad
@group(0) @binding(w) var<storage, read> w: array<u32>;

// Of output n, column k: the bits of a float32.
fn right_of(batch: u32, n: u32, k: u32) -> u32 {
    let place = sizes.right_start + batch * sizes.right_batch + n * sizes.right_row
        + k * sizes.right_column;
    if (RIGHT_STORAGE == 0u) {
        return w[place];
    }
    return widened(w[place / 2u] >> (place % 2u * 16u) & 0xffffu, RIGHT_STORAGE);
}

fn prepare_right(lane: u32) {}

// Four neighbours along k, and whether a product with them may be doubted.
fn right_quad(batch: u32, n: u32, quad: u32) -> Quad {
    let k = quad * 4u;
    var bits = vec4<u32>();
    for (var c = 0u; c < min(sizes.inner - k, 4u); c++) {
        bits[c] = right_of(batch, n, k + c);
    }
    let doubt = any((bits & vec4(0x7fffffffu)) > vec4(VALUE_LIMIT));
    return Quad(bitcast<vec4<f32>>(bits), doubt);
}

//# step/exact
// A block's step as it is defined.
// needs: stored_params/step
fn fast_step(block: u32) -> Step {
    return step_at(block);
}

//# step/halves
// A step of two levels, the inner one a minifloat that float16 has at another exponent
// (matmul/halves.py): as it is defined, unless it is subnormal.
// needs: stored_params/step
fn fast_step(block: u32) -> Step {
    let code = given_scale(block);
    let half = (code & 0x80u) << 8u | (code & 0x7fu) << (10u - INNER_MBITS);
    let inner = unpack2x16float(half).x * bitcast<f32>(INNER_FACTOR);
    let step = bitcast<u32>(inner * bitcast<f32>(given_outer(block)));
    let missing = INNER_ONE_NAN && (code & 0x7fu) == 0x7fu;
    return Step(select(step, 0x7fc00000u, missing), 0u, given_zero(block), given_offset(block), true);
}

//# table/codes
// A table of codes.
// needs: matmul/codes
fn number_of(row: u32, column: u32) -> u32 {
    return weight_of(row, column);
}

//# table/floats
// A table of floats.
// needs: matmul/right/floats
fn number_of(row: u32, column: u32) -> u32 {
    return right_of(0u, row, column);
}
