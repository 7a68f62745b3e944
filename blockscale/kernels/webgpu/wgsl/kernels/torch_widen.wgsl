// SPDX-License-Identifier: BSD-3-Clause
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
