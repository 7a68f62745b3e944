// SPDX-License-Identifier: BSD-3-Clause
// The random number of each index, for the probe of a device and for tests.
// needs: memory/grid, rounding/random/{random}
struct Drawn {
    four: vec4<u32>,
    one: vec4<u32>, // four times
}

@group(0) @binding(asked) var<storage, read> asked: array<vec4<u32>>; // index, seed
@group(0) @binding(drawn) var<storage, read_write> drawn: array<Drawn>;

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>,
        @builtin(local_invocation_index) lane: u32) {
    let i = group_number(group, groups) * 64u + lane;
    if (i < sizes.count) {
        let four = draw_four(asked[i].xy, asked[i].zw);
        drawn[i] = Drawn(four, vec4(draw(asked[i].xy, asked[i].zw)));
    }
}
