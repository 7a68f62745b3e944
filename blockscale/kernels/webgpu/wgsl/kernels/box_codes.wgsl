// SPDX-License-Identifier: BSD-3-Clause
// The code of each number, one a word, and the value that it means.
// needs: memory/grid, boxes/box, choose/{rule}, step/{step}, code/{how}
@group(0) @binding(largest) var<storage, read> largest: array<u32>;
@group(0) @binding(chosen) var<storage, read> chosen: array<vec4<u32>>;
@group(0) @binding(codes) var<storage, read_write> codes: array<u32>;
@group(0) @binding(values) var<storage, read_write> values: array<u32>;

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>,
        @builtin(local_invocation_index) lane: u32) {
    let i = group_number(group, groups) * 64u + lane;
    if (i >= sizes.rows * sizes.columns) {
        return;
    }
    let found = chosen[block_of(i)];
    let step = step_of(found.x, bitcast<i32>(found.y), outer_of(largest[0]), found.w);
    let code = code_of(numbers[i], step, 0u);
    codes[i] = code;
    values[i] = value_of(code, step);
}
