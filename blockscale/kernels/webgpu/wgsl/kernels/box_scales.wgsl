// SPDX-License-Identifier: BSD-3-Clause
// The scale of each block, its zero point and its offset, as they are stored; and its step.
// needs: memory/grid, choose/{rule}, step/{step}
@group(0) @binding(ranges) var<storage, read> ranges: array<vec4<u32>>;
@group(0) @binding(largest) var<storage, read> largest: array<u32>;
@group(0) @binding(chosen) var<storage, read_write> chosen: array<vec4<u32>>;

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>,
        @builtin(local_invocation_index) lane: u32) {
    let block = group_number(group, groups) * 64u + lane;
    if (block >= sizes.blocks) {
        return;
    }
    let range = ranges[block];
    let outer = outer_of(largest[0]);
    let found = choose(Range(range.x, range.y, POISONS && range.z == 1u), outer);
    let step = step_of(found.scale, found.zero, outer, found.offset);
    chosen[block] = vec4<u32>(found.scale, bitcast<u32>(found.zero), step.bits, found.offset);
}
