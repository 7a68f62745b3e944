// SPDX-License-Identifier: BSD-3-Clause
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
