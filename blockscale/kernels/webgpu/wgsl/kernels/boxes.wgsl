// SPDX-License-Identifier: BSD-3-Clause
// Quantizing in a page (reporting/browser): ranges of blocks, their scales, codes.

//# ranges
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

//# scales
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

//# codes
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
