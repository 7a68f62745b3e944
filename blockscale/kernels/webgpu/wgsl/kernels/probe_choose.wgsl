// SPDX-License-Identifier: BSD-3-Clause
// What is chosen for each range, for the probe of a device and for tests.
// needs: memory/grid, choose/{rule}
struct Given {
    low: u32,
    high: u32,
    poisoned: u32,
    largest: u32, // numerator of the blocks that share an outer scale
}

struct Found {
    numerator: u32,
    outer: u32,
    scale: u32,
    zero: i32,
    offset: u32,
}

@group(0) @binding(given) var<storage, read> given: array<Given>;
@group(0) @binding(found) var<storage, read_write> found: array<Found>;

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>,
        @builtin(local_invocation_index) lane: u32) {
    let i = group_number(group, groups) * 64u + lane;
    if (i < sizes.count) {
        let r = Range(given[i].low, given[i].high, given[i].poisoned != 0u);
        let outer = outer_of(given[i].largest);
        let made = choose(r, outer);
        found[i] = Found(numerator(r), outer, made.scale, made.zero, made.offset);
    }
}
