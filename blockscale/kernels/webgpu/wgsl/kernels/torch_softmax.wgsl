// SPDX-License-Identifier: BSD-3-Clause
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
