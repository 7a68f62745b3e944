// The random number of each index, for the probe of a device and for tests.
// needs: grid, random/{random}
@group(0) @binding(asked) var<storage, read> asked: array<vec4<u32>>; // index, seed
@group(0) @binding(drawn) var<storage, read_write> drawn: array<u32>;

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>,
        @builtin(local_invocation_index) lane: u32) {
    let i = group_number(group, groups) * 64u + lane;
    if (i < sizes.count) {
        drawn[i] = draw(asked[i].xy, asked[i].zw);
    }
}
