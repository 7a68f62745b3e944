// SPDX-License-Identifier: BSD-3-Clause
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
