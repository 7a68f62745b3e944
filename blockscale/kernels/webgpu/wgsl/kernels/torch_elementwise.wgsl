// SPDX-License-Identifier: BSD-3-Clause
// Elementwise ops of torch's device (torch_ops/elementwise.py).

//# unary
// A function of each element: one word of the result an invocation.
// needs: memory/grid, torch/first, torch/math/order, torch_functions/unary/{function}
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
        let x = first(i);
        var y = 0x7fc00000u; // NaN stays what it is
        if (!is_nan(x)) {
            y = of_one(x);
        }
        word |= narrow(y) << ((i - start) * FLOAT_BITS);
    }
    result[start / LANES] = word;
}

//# binary
// A function of two elements, or of one and a number: one word of the result an invocation.
// needs: memory/grid, torch/first, torch/operand/{second}, torch_functions/binary/{function}
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
        word |= narrow(of_two(first(i), second(i))) << ((i - start) * FLOAT_BITS);
    }
    result[start / LANES] = word;
}

//# compare
// A comparison of two elements, or of one and a number: four bytes of the result an invocation.
// needs: memory/grid, torch/first, torch/operand/{second}, torch_functions/compare/{function}
@group(0) @binding(result) var<storage, read_write> result: array<u32>;

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>,
        @builtin(local_invocation_index) lane: u32) {
    let start = (group_number(group, groups) * 256u + lane) * 4u;
    if (start >= sizes.count) {
        return;
    }
    var word = 0u;
    for (var i = start; i < min(start + 4u, sizes.count); i++) {
        word |= u32(holds(first(i), second(i))) << ((i - start) * 8u);
    }
    result[start / 4u] = word;
}

//# where
// Elements of any dtype of one tensor or of another, as a condition says: operands 0, 1 and 2.
// needs: memory/grid, torch/items, torch/address/{address}
@group(0) @binding(condition) var<storage, read> condition: array<u32>;
@group(0) @binding(x) var<storage, read> x: array<u32>;
@group(0) @binding(y) var<storage, read> y: array<u32>;
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
        if (extractBits(condition[at / 4u], at % 4u * 8u, 8u) != 0u) {
            let place = address(i, 1u);
            word |= moved(x[word_of(place, w)], place, i);
        } else {
            let place = address(i, 2u);
            word |= moved(y[word_of(place, w)], place, i);
        }
    }
    result[w] = word;
}

//# integers
// A function of two whole numbers, or of one and a given one, in 64 bits: the elements of a word of
// the result an invocation, or one element of two words.
// needs: memory/grid, torch_functions/integers/{function}, torch/address/{address}
@group(0) @binding(x) var<storage, read> x: array<u32>;
@group(0) @binding(y) var<storage, read> y: array<u32>;
@group(0) @binding(result) var<storage, read_write> result: array<u32>;

// Bits of a word that begin at one of them, as a number of 64 bits: low half first.
fn extended(word: u32, at: u32, size: u32, signed: bool) -> vec2<u32> {
    let small = min(size, 32u);
    let bits = extractBits(word, at * small % 32u, small);
    if (signed) {
        let number = bitcast<i32>(bits << (32u - small)) >> (32u - small);
        return vec2(u32(number), u32(number >> 31u));
    }
    return vec2(bits, 0u);
}

fn first(i: u32) -> vec2<u32> {
    let at = address(i, 0u);
    if (X_BITS == 64u) {
        return vec2(x[at * 2u], x[at * 2u + 1u]);
    }
    return extended(x[at * min(X_BITS, 32u) / 32u], at, X_BITS, X_SIGNED);
}

fn second(i: u32) -> vec2<u32> {
    let at = address(i, 1u);
    if (Y_BITS == 64u) {
        return vec2(y[at * 2u], y[at * 2u + 1u]);
    }
    return extended(y[at * min(Y_BITS, 32u) / 32u], at, Y_BITS, Y_SIGNED);
}

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>,
        @builtin(local_invocation_index) lane: u32) {
    let lanes = max(32u / RESULT_BITS, 1u);
    let start = (group_number(group, groups) * 256u + lane) * lanes;
    if (start >= sizes.count) {
        return;
    }
    if (RESULT_BITS == 64u) {
        let found = of_two(first(start), second(start));
        result[start * 2u] = found.x;
        result[start * 2u + 1u] = found.y;
        return;
    }
    var word = 0u;
    for (var i = start; i < min(start + lanes, sizes.count); i++) {
        let found = of_two(first(i), second(i)).x;
        word |= extractBits(found, 0u, min(RESULT_BITS, 32u)) << ((i - start) * RESULT_BITS % 32u);
    }
    result[start / lanes] = word;
}
