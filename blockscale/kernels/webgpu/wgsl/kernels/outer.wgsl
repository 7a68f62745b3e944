// SPDX-License-Identifier: BSD-3-Clause
// Outer scales, from the largest numerators of the blocks that share them: words of SCALE_BITS each.
// needs: memory/grid, choose/{rule}, stored_params/store/scale
// needs: stored_params/store/scale_{stored_outer}
@group(0) @binding(largest) var<storage, read> largest: array<u32>;

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>,
        @builtin(local_invocation_index) lane: u32) {
    let word = group_number(group, groups) * 256u + lane;
    let together = 32u / SCALE_BITS;
    if (word * together >= sizes.outers) {
        return;
    }
    var outers = 0u;
    for (var i = 0u; i < together && word * together + i < sizes.outers; i++) {
        outers |= stored_scale(outer_of(largest[word * together + i])) << (i * SCALE_BITS);
    }
    put_scales(word, outers);
}
