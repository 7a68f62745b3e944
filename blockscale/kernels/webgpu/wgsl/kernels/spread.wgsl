// SPDX-License-Identifier: BSD-3-Clause
// The outer scale of each block as float32, from those that blocks share.
// needs: memory/grid, blocks/{blocks}, stored_params/scale_{given_scale}
@group(0) @binding(each) var<storage, read_write> each: array<u32>;

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>,
        @builtin(local_invocation_index) lane: u32) {
    let block = group_number(group, groups) * 256u + lane;
    if (block < sizes.count) {
        each[block] = given_scale(block_of(block));
    }
}
