// SPDX-License-Identifier: BSD-3-Clause
// What is stored beside codes: scales, zero points, offsets and outer scales, read (`scale_…`) and
// written (`store/…`), by the dtype of each.

//# offset_bfloat16
@group(0) @binding(offsets) var<storage, read> offsets: array<u32>;

fn given_offset(block: u32) -> u32 {
    return (offsets[block / 2u] >> (block % 2u * 16u)) << 16u;
}

//# offset_float16
// needs: bits/half
@group(0) @binding(offsets) var<storage, read> offsets: array<u32>;

fn given_offset(block: u32) -> u32 {
    return widen_float16((offsets[block / 2u] >> (block % 2u * 16u)) & 0xffffu);
}

//# offset_float32
@group(0) @binding(offsets) var<storage, read> offsets: array<u32>;

fn given_offset(block: u32) -> u32 {
    return offsets[block];
}

//# offset_none
fn given_offset(block: u32) -> u32 {
    return 0u;
}

//# outer_each
// An outer scale for each block (kernels/choose/spread).
@group(0) @binding(outers) var<storage, read> outers: array<u32>;

fn given_outer(block: u32) -> u32 {
    return outers[block];
}

//# outer_none
fn given_outer(block: u32) -> u32 {
    return 0u;
}

//# outer_one
// One outer scale for everything.
@group(0) @binding(outers) var<storage, read> outers: array<u32>;

fn given_outer(block: u32) -> u32 {
    return outers[0];
}

//# outer_run
// An outer scale for each OUTER_BLOCKS neighbours.
@group(0) @binding(outers) var<storage, read> outers: array<u32>;

fn given_outer(block: u32) -> u32 {
    return outers[block / OUTER_BLOCKS];
}

//# scale_bfloat16
// Stored scales that are bfloat16, widened to float32 bits.
@group(0) @binding(scales) var<storage, read> scales: array<u32>;

fn given_scale(block: u32) -> u32 {
    return (scales[block / 2u] >> (block % 2u * 16u)) << 16u;
}

//# scale_byte
// Stored scales of a byte: e8m0, and the codes of two levels.
@group(0) @binding(scales) var<storage, read> scales: array<u32>;

fn given_scale(block: u32) -> u32 {
    return (scales[block / 4u] >> (block % 4u * 8u)) & 0xffu;
}

//# scale_float16
// Stored scales that are float16, widened to float32 bits.
// needs: bits/half
@group(0) @binding(scales) var<storage, read> scales: array<u32>;

fn given_scale(block: u32) -> u32 {
    return widen_float16((scales[block / 2u] >> (block % 2u * 16u)) & 0xffffu);
}

//# scale_float32
// Stored scales that are float32: as they are.
@group(0) @binding(scales) var<storage, read> scales: array<u32>;

fn given_scale(block: u32) -> u32 {
    return scales[block];
}

//# step
// What is stored beside the codes of a block -> its Step.
// needs: step/{step}, stored_params/scale_{given_scale}, stored_params/zero_{given_zero}
// needs: stored_params/outer_{given_outer}, stored_params/offset_{given_offset}
fn step_at(block: u32) -> Step {
    return step_of(given_scale(block), given_zero(block), given_outer(block), given_offset(block));
}

//# zero_bfloat16
// Zero points that are bfloat16, as the bits of float32.
@group(0) @binding(zeros) var<storage, read> zeros: array<u32>;

fn given_zero(block: u32) -> i32 {
    return bitcast<i32>((zeros[block / 2u] >> (block % 2u * 16u)) << 16u);
}

//# zero_float16
// Zero points that are float16, as the bits of float32.
// needs: bits/half
@group(0) @binding(zeros) var<storage, read> zeros: array<u32>;

fn given_zero(block: u32) -> i32 {
    return bitcast<i32>(widen_float16((zeros[block / 2u] >> (block % 2u * 16u)) & 0xffffu));
}

//# zero_none
fn given_zero(block: u32) -> i32 {
    return 0;
}

//# zero_word
// Zero points of 32 bits: integers, or the bits of float32.
@group(0) @binding(zeros) var<storage, read> zeros: array<i32>;

fn given_zero(block: u32) -> i32 {
    return zeros[block];
}

//# store/offset_bfloat16
// needs: bits/half
fn stored_offset(x: u32) -> u32 {
    return narrow_bfloat16(x);
}

//# store/offset_float16
// needs: bits/half
fn stored_offset(x: u32) -> u32 {
    return narrow_float16(x);
}

//# store/offset_plain
fn stored_offset(x: u32) -> u32 {
    return x;
}

//# store/offsets_none
fn put_offsets(place: u32, word: u32) {
}

//# store/offsets_words
// Words of stored offsets, OFFSET_BITS each.
@group(0) @binding(offsets) var<storage, read_write> offsets: array<u32>;

fn put_offsets(place: u32, word: u32) {
    offsets[place] = word;
}

//# store/scale
// Words of stored scales, SCALE_BITS each.
@group(0) @binding(scales) var<storage, read_write> scales: array<u32>;

fn put_scales(place: u32, word: u32) {
    scales[place] = word;
}

//# store/scale_bfloat16
// needs: bits/half
fn stored_scale(x: u32) -> u32 {
    return narrow_bfloat16(x);
}

//# store/scale_float16
// needs: bits/half
fn stored_scale(x: u32) -> u32 {
    return narrow_float16(x);
}

//# store/scale_plain
fn stored_scale(x: u32) -> u32 {
    return x;
}

//# store/zero_bfloat16
// needs: bits/half
fn stored_zero(x: i32) -> u32 {
    return narrow_bfloat16(bitcast<u32>(x));
}

//# store/zero_float16
// needs: bits/half
fn stored_zero(x: i32) -> u32 {
    return narrow_float16(bitcast<u32>(x));
}

//# store/zero_plain
fn stored_zero(x: i32) -> u32 {
    return bitcast<u32>(x);
}

//# store/zeros_none
fn put_zeros(place: u32, word: u32) {
}

//# store/zeros_words
// Words of stored zero points, ZERO_BITS each.
@group(0) @binding(zeros) var<storage, read_write> zeros: array<u32>;

fn put_zeros(place: u32, word: u32) {
    zeros[place] = word;
}
