// SPDX-License-Identifier: BSD-3-Clause
// Reductions and norms of rows on torch's device (torch_ops/reductions.py).

//# reduce
// Rows -> one number each, or `parts` numbers, in float32: a workgroup for each.
// needs: memory/grid, torch/first, torch_functions/binary/{joining}, torch/joined
@group(0) @binding(result) var<storage, read_write> result: array<u32>;

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>,
        @builtin(local_invocation_index) lane: u32) {
    let number = group_number(group, groups);
    if (number >= sizes.rows * sizes.parts) {
        return;
    }
    let row = number / sizes.parts * sizes.columns;
    let start = number % sizes.parts * sizes.span;
    var mine = START;
    for (var j = start + lane; j < min(start + sizes.span, sizes.columns); j += 64u) {
        mine = of_two(mine, first(row + j));
    }
    let whole = joined(mine, lane);
    if (lane == 0u) {
        result[number] = whole;
    }
}

//# softmax
// softmax or its logarithm of each row, in float32: a workgroup for each. SAFE
// makes rows of nothing but -inf 0, which are NaN otherwise.
// needs: memory/grid, torch/first, torch/sums, torch/math/exponential
@group(0) @binding(result) var<storage, read_write> result: array<u32>;

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>,
        @builtin(local_invocation_index) lane: u32) {
    let row = group_number(group, groups);
    if (row >= sizes.rows) {
        return;
    }
    let start = row * sizes.columns;
    var mine = 0xff800000u;
    for (var j = lane; j < sizes.columns; j += 64u) {
        mine = of_two(mine, first(start + j));
    }
    let most = largest_of(mine, lane);
    var powers = 0.0;
    for (var j = lane; j < sizes.columns; j += 64u) {
        powers += exponential(bits_of(float_of(first(start + j)) - float_of(most)));
    }
    let whole = sum_of(powers, lane);
    let finite = (most & INFINITY) != INFINITY;
    let nothing = select(NAN, 0u, SAFE && most == 0xff800000u);
    for (var j = lane; j < sizes.columns; j += 64u) {
        let x = float_of(first(start + j)) - float_of(most);
        var y: f32;
        if (LOGARITHM) {
            y = x - log(whole);
        } else {
            y = exponential(bits_of(x)) / whole;
        }
        result[start + j] = select(nothing, bits_of(y), finite); // else infinity less infinity
    }
}

//# layer_norm
// Rows less their mean, divided by their deviation, times a weight and plus a bias, in float32.
// needs: memory/grid, torch/first, torch/sums, torch/math/float_of
@group(0) @binding(weight) var<storage, read> weight: array<f32>;
@group(0) @binding(bias) var<storage, read> bias: array<f32>;
@group(0) @binding(result) var<storage, read_write> result: array<f32>;
@group(0) @binding(means) var<storage, read_write> means: array<f32>;
@group(0) @binding(inverses) var<storage, read_write> inverses: array<f32>;

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>,
        @builtin(local_invocation_index) lane: u32) {
    let row = group_number(group, groups);
    if (row >= sizes.rows) {
        return;
    }
    let start = row * sizes.columns;
    var mine = 0.0;
    for (var j = lane; j < sizes.columns; j += 64u) {
        mine += float_of(first(start + j));
    }
    let mean = sum_of(mine, lane) / f32(sizes.columns);
    mine = 0.0;
    for (var j = lane; j < sizes.columns; j += 64u) {
        let away = float_of(first(start + j)) - mean;
        mine += away * away;
    }
    let variance = sum_of(mine, lane) / f32(sizes.columns);
    let inverse = 1.0 / sqrt(variance + float_of(sizes.epsilon));
    for (var j = lane; j < sizes.columns; j += 64u) {
        let y = (float_of(first(start + j)) - mean) * inverse;
        result[start + j] = y * weight[j] + bias[j];
    }
    if (lane == 0u) {
        means[row] = mean;
        inverses[row] = inverse;
    }
}
