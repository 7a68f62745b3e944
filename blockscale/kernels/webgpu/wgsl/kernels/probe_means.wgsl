// SPDX-License-Identifier: BSD-3-Clause
// Means of sums, and floats of 16 bits, for tests.
// needs: memory/grid, choose/mean, memory/float/{float}
struct Given {
    low: u32,
    high: u32,
    count: u32,
    power: u32,
    x: u32,
    half: u32,
}

struct Found {
    mean: u32,
    narrow: u32,
    wide: u32,
}

@group(0) @binding(given) var<storage, read> given: array<Given>;
@group(0) @binding(found) var<storage, read_write> found: array<Found>;

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>,
        @builtin(local_invocation_index) lane: u32) {
    let i = group_number(group, groups) * 64u + lane;
    if (i < sizes.count) {
        let each = given[i];
        found[i] = Found(mean_of(vec2<u32>(each.low, each.high), each.count, each.power),
                         narrow(each.x), widen(each.half));
    }
}
