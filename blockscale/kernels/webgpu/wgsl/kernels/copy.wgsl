// SPDX-License-Identifier: BSD-3-Clause
// A copy of words, four to an invocation: the ceiling of every benchmark.
// needs: memory/grid
@group(0) @binding(source) var<storage, read> source: array<vec4<u32>>;
@group(0) @binding(result) var<storage, read_write> result: array<vec4<u32>>;

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>,
        @builtin(local_invocation_index) lane: u32) {
    let i = group_number(group, groups) * 256u + lane;
    if (i < sizes.count) {
        result[i] = source[i];
    }
}
