// SPDX-License-Identifier: BSD-3-Clause
// Reads words, four to an invocation, and writes a byte of each: what quantizing to 8 bits moves
// without its arithmetic, which is the floor of a software adapter's kernels.
// needs: memory/grid
@group(0) @binding(source) var<storage, read> source: array<vec4<u32>>;
@group(0) @binding(result) var<storage, read_write> result: array<u32>;

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>,
        @builtin(local_invocation_index) lane: u32) {
    let i = group_number(group, groups) * 256u + lane;
    if (i < sizes.count) {
        let bytes = (source[i] >> vec4(24u)) << vec4(0u, 8u, 16u, 24u);
        result[i] = bytes.x | bytes.y | bytes.z | bytes.w;
    }
}
