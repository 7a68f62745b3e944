// SPDX-License-Identifier: BSD-3-Clause
// Numbers to codes and back where scales are known, and codes to packed bytes and back.

//# quantize
// Codes or values of numbers whose blocks have a scale: a chunk of CHUNK to an invocation.
// needs: memory/grid, memory/load/{load}, blocks/{blocks}, stored_params/step, result/{result}

struct Held {
    block: u32,
    step: Step,
}

// The step of element i, which is read where the block is another than that of the one before.
fn step_of_element(i: u32, held: ptr<function, Held>) -> Step {
    let block = block_of(sizes.first + min(i, sizes.bound - 1u));
    if (block != (*held).block) {
        *held = Held(block, step_at(block));
    }
    return (*held).step;
}

// Four elements from i on. Where each may have a step of its own, only its place of four is kept.
fn made4_at(i: u32, x: vec4<u32>, held: ptr<function, Held>) -> vec4<u32> {
    if (SHARED) {
        return made4(x, (*held).step, i);
    }
    let first = made4(vec4(x.x), step_of_element(i, held), i).x;
    let second = made4(vec4(x.y), step_of_element(i + 1u, held), i).y;
    let third = made4(vec4(x.z), step_of_element(i + 2u, held), i).z;
    return vec4(first, second, third, made4(vec4(x.w), step_of_element(i + 3u, held), i).w);
}

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>,
        @builtin(local_invocation_index) lane: u32) {
    let start = (group_number(group, groups) * 256u + lane) * CHUNK;
    if (start >= sizes.bound) {
        return;
    }
    let block = block_of(sizes.first + start);
    var held = Held(block, step_at(block));
    var written = written_from(start);
    for (var i = start; i < start + CHUNK; i += 4u) {
        written = put4(written, i, made4_at(i, load4(i / 4u), &held));
    }
}

//# dequantize
// Values of codes: a chunk of CHUNK to an invocation.
// needs: memory/grid, memory/load/fours_in_{codes}, blocks/{blocks}, stored_params/step
// needs: code/{how}, memory/store/{store}

struct Held {
    block: u32,
    step: Step,
}

fn value_at(i: u32, code: u32, held: ptr<function, Held>) -> u32 {
    let block = block_of(sizes.first + min(i, sizes.bound - 1u));
    if (block != (*held).block) {
        *held = Held(block, step_at(block));
    }
    return value_of(code, (*held).step);
}

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>,
        @builtin(local_invocation_index) lane: u32) {
    let start = (group_number(group, groups) * 256u + lane) * CHUNK;
    if (start >= sizes.bound) {
        return;
    }
    let block = block_of(sizes.first + start);
    var held = Held(block, step_at(block));
    for (var i = start; i < min(start + CHUNK, sizes.bound); i += 4u) {
        let codes = codes4(i);
        if (SHARED) {
            store4(i / 4u, four_values(codes, held.step));
        } else {
            store4(i / 4u, vec4(value_at(i, codes.x, &held), value_at(i + 1u, codes.y, &held),
                                value_at(i + 2u, codes.z, &held),
                                value_at(i + 3u, codes.w, &held)));
        }
    }
}

//# pack
// Codes, one an item of ITEM_BITS -> rows of bytes that are streams of BITS (docs/numerics.md, 6).
// An invocation writes the four bytes of one word, which may belong to several rows.
// needs: memory/grid
@group(0) @binding(items) var<storage, read> items: array<u32>;
@group(0) @binding(codes) var<storage, read_write> codes: array<u32>;

const PER_WORD = 32u / ITEM_BITS;

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>,
        @builtin(local_invocation_index) lane: u32) {
    let word = group_number(group, groups) * 256u + lane;
    if (word >= (sizes.bytes + 3u) / 4u) {
        return;
    }
    var packed = 0u;
    for (var j = 0u; j < 4u && 4u * word + j < sizes.bytes; j++) {
        packed |= byte_of(4u * word + j) << (8u * j);
    }
    codes[word] = packed;
}

// A byte of all rows: the bits of the one, two or more codes that reach into it.
fn byte_of(place: u32) -> u32 {
    let row = place / sizes.row_bytes;
    let bit = (place - row * sizes.row_bytes) * 8u;
    let last = min((bit + 7u) / BITS, sizes.row - 1u);
    var byte = 0u;
    for (var column = bit / BITS; column <= last; column++) {
        let start = column * BITS;
        let code = code_at(row * sizes.row + column);
        byte |= select(code >> (bit - start), code << (start - bit), start > bit);
    }
    return byte & 0xffu;
}

fn code_at(i: u32) -> u32 {
    let item = (items[i / PER_WORD] >> (i % PER_WORD * ITEM_BITS)) & (0xffffffffu >> (32u - ITEM_BITS));
    if (BY_SIGN) {
        return select(0u, 1u, item - 1u < (1u << (ITEM_BITS - 1u)) - 1u); // above 0
    }
    return item & (0xffffffffu >> (32u - BITS));
}

//# unpack
// Packed codes -> codes, one an item of ITEM_BITS; an invocation writes one word.
// needs: memory/grid, memory/load/codes_in_rows
@group(0) @binding(items) var<storage, read_write> items: array<u32>;

const PER_WORD = 32u / ITEM_BITS;

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>,
        @builtin(local_invocation_index) lane: u32) {
    let word = group_number(group, groups) * 256u + lane;
    if (word >= (sizes.count + PER_WORD - 1u) / PER_WORD) {
        return;
    }
    var unpacked = 0u;
    for (var j = 0u; j < PER_WORD && PER_WORD * word + j < sizes.count; j++) {
        let item = item_of(code_at(PER_WORD * word + j)) & (0xffffffffu >> (32u - ITEM_BITS));
        unpacked |= item << (j * ITEM_BITS);
    }
    items[word] = unpacked;
}

fn item_of(code: u32) -> u32 {
    if (BY_SIGN) {
        return select(0xffffffffu, 1u, code == 1u);
    }
    if (SIGNED) {
        return bitcast<u32>(bitcast<i32>(code << (32u - BITS)) >> (32u - BITS));
    }
    return code;
}
