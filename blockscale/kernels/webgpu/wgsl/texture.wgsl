// SPDX-License-Identifier: BSD-3-Clause
// Texels of 8, 16 or 32 bits a component: their blocks, and what is done with them.

//# blocks/any
// Blocks that are no boxes of texels: found by the element's index in the tensor.
// needs: blocks/{blocks}
fn row_start(y: u32, z: u32) -> u32 {
    return (z * sizes.height + y) * sizes.width;
}

fn block_in_row(start: u32, e: u32) -> u32 {
    return block_of(start + e);
}

//# blocks/boxes
// Blocks that are boxes: a coordinate divided by the block's size along each dimension, times the
// stride of blocks along it. The batch is folded with the channels in z.
fn row_start(y: u32, z: u32) -> u32 {
    let batch = z / sizes.channels;
    let channel = z - batch * sizes.channels;
    return y / sizes.block_height * sizes.stride_height
        + channel / sizes.block_channels * sizes.stride_channels
        + batch / sizes.block_batch * sizes.stride_batch;
}

// The block of element `e` of a row, from what row_start gave.
fn block_in_row(start: u32, e: u32) -> u32 {
    return start + e / sizes.block_width;
}

//# ops/dequantize
// Codes -> their values.
// needs: memory/float/{dtype}, code/{how}
fn results_of(codes: vec4<u32>, s: Step, words: vec4<u32>) -> vec4<u32> {
    let found = four_values(codes, s);
    return vec4(narrow(found.x), narrow(found.y), narrow(found.z), narrow(found.w));
}

fn result_of(code: u32, s: Step, word: u32) -> u32 {
    return narrow(value_of(code, s));
}

//# ops/fake_quantize
// Numbers -> the values of their codes.
// needs: memory/float/{dtype}, code/{how}
fn results_of(x: vec4<u32>, s: Step, words: vec4<u32>) -> vec4<u32> {
    let wide = vec4(widen(x.x), widen(x.y), widen(x.z), widen(x.w));
    let found = four_values(four_codes(wide, s, words), s);
    return vec4(narrow(found.x), narrow(found.y), narrow(found.z), narrow(found.w));
}

fn result_of(x: u32, s: Step, word: u32) -> u32 {
    return narrow(value_of(code_of(widen(x), s, word), s));
}

//# ops/quantize
// Numbers -> their codes.
// needs: memory/float/{dtype}, code/{how}
fn results_of(x: vec4<u32>, s: Step, words: vec4<u32>) -> vec4<u32> {
    return four_codes(vec4(widen(x.x), widen(x.y), widen(x.z), widen(x.w)), s, words);
}

fn result_of(x: u32, s: Step, word: u32) -> u32 {
    return code_of(widen(x), s, word);
}

//# texel/bits16
// Texels of four components of 16 bits are written.
@group(0) @binding(result) var result: texture_storage_3d<rgba16uint, write>;

//# texel/bits32
// Texels of four components of 32 bits are written.
@group(0) @binding(result) var result: texture_storage_3d<rgba32uint, write>;

//# texel/bits8
// Texels of four components of 8 bits are written.
@group(0) @binding(result) var result: texture_storage_3d<rgba8uint, write>;
