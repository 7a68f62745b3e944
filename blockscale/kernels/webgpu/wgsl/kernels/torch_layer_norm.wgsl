// SPDX-License-Identifier: BSD-3-Clause
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
