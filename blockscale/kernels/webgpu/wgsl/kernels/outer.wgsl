// Outer scales, from the largest numerators of the blocks that share them.
// needs: grid, choose/{rule}
@group(0) @binding(largest) var<storage, read> largest: array<u32>;
@group(0) @binding(outers) var<storage, read_write> outers: array<u32>;

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>,
        @builtin(local_invocation_index) lane: u32) {
    let i = group_number(group, groups) * 256u + lane;
    if (i < sizes.outers) {
        outers[i] = outer_of(largest[i]);
    }
}
