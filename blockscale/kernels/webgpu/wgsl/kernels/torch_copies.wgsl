// SPDX-License-Identifier: BSD-3-Clause
// Copies and indexing on torch's device (torch_ops/copies.py).

//# widen
// Floats, or booleans and bytes, of a view -> float32, one an invocation.
// needs: memory/grid, torch/{numbers}
@group(0) @binding(result) var<storage, read_write> result: array<u32>;

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>,
        @builtin(local_invocation_index) lane: u32) {
    let i = group_number(group, groups) * 256u + lane;
    if (i < sizes.count) {
        result[i] = first(i);
    }
}

//# convert
// float32 -> a narrower float: one word of the result an invocation.
// needs: memory/grid, torch/lanes
@group(0) @binding(x) var<storage, read> x: array<u32>;
@group(0) @binding(result) var<storage, read_write> result: array<u32>;

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>,
        @builtin(local_invocation_index) lane: u32) {
    let start = (group_number(group, groups) * 256u + lane) * LANES;
    if (start >= sizes.count) {
        return;
    }
    var word = 0u;
    for (var i = start; i < min(start + LANES, sizes.count); i++) {
        word |= narrow(x[i]) << ((i - start) * FLOAT_BITS);
    }
    result[start / LANES] = word;
}

//# gather
// Elements of any dtype, put together in row-major order: a view becomes a tensor of its own.
// needs: memory/grid, torch/items, torch/address/strided
@group(0) @binding(x) var<storage, read> x: array<u32>;
@group(0) @binding(result) var<storage, read_write> result: array<u32>;

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>,
        @builtin(local_invocation_index) lane: u32) {
    let w = group_number(group, groups) * 256u + lane;
    let start = w / WORDS * LANES;
    if (start >= sizes.count) {
        return;
    }
    var word = 0u;
    for (var i = start; i < min(start + LANES, sizes.count); i++) {
        let at = address(i, 0u);
        word |= moved(x[word_of(at, w)], at, i);
    }
    result[w] = word;
}

//# scatter
// A tensor of any dtype is written into a view, operand 0 of the addresses; the tensor itself may
// be a view, operand 1. Elements share words with others that stay, hence the atomics.
// needs: memory/grid, torch/items, torch/address/strided
@group(0) @binding(x) var<storage, read> x: array<u32>;
@group(0) @binding(result) var<storage, read_write> result: array<atomic<u32>>;

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>,
        @builtin(local_invocation_index) lane: u32) {
    let w = group_number(group, groups) * 256u + lane;
    let i = w / WORDS;
    if (i >= sizes.count) {
        return;
    }
    let to = address(i, 0u);
    let origin = address(i, 1u);
    let bits = moved(x[word_of(origin, w)], origin, to);
    let place = word_of(to, w);
    if (ITEM_BITS >= 32u) {
        atomicStore(&result[place], bits);
        return;
    }
    let others = ~(((1u << (ITEM_BITS % 32u)) - 1u) << (to % LANES * ITEM_BITS));
    atomicAnd(&result[place], others);
    atomicOr(&result[place], bits);
}

//# choose_rows
// Rows of a table of any dtype, chosen by indices of INDEX_WORDS words: embedding, index_select.
// needs: memory/grid, torch/items
@group(0) @binding(table) var<storage, read> table: array<u32>;
@group(0) @binding(indices) var<storage, read> indices: array<u32>;
@group(0) @binding(result) var<storage, read_write> result: array<u32>;

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>,
        @builtin(local_invocation_index) lane: u32) {
    let w = group_number(group, groups) * 256u + lane;
    let start = w / WORDS * LANES;
    if (start >= sizes.count) {
        return;
    }
    var word = 0u;
    for (var i = start; i < min(start + LANES, sizes.count); i++) {
        let at = indices[i / sizes.row * INDEX_WORDS] * sizes.row + i % sizes.row;
        word |= moved(table[word_of(at, w)], at, i);
    }
    result[w] = word;
}
