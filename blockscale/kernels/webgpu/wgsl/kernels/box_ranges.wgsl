// SPDX-License-Identifier: BSD-3-Clause
// What the scale of each block is chosen from, and the largest of their numerators.
// needs: memory/grid, boxes/{statistic}
@group(0) @binding(ranges) var<storage, read_write> ranges: array<vec4<u32>>;
@group(0) @binding(largest) var<storage, read_write> largest: array<atomic<u32>>;

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>,
        @builtin(local_invocation_index) lane: u32) {
    let block = group_number(group, groups) * 64u + lane;
    if (block >= sizes.blocks) {
        return;
    }
    let found = range_of(block);
    ranges[block] = vec4<u32>(found.low, found.high, u32(found.poisoned), 0u);
    if (!(found.poisoned && POISONS)) { // of positive floats, the larger one has the larger bits
        atomicMax(&largest[0], numerator(found));
    }
}
