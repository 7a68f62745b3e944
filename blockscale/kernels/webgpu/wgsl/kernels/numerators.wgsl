// SPDX-License-Identifier: BSD-3-Clause
// The largest numerator of the blocks that share an outer scale; poisoned ones are left out.
// `largest` starts as zeros. An invocation takes EACH blocks; where all share one outer scale, a
// workgroup merges what it found before it tells.
// needs: memory/grid, choose/{rule}, statistics/block_stats/{block_stats}, blocks/{blocks}
@group(0) @binding(largest) var<storage, read_write> largest: array<atomic<u32>>;

const EACH = 16u;
var<workgroup> of_group: atomic<u32>;

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>,
        @builtin(local_invocation_index) lane: u32) {
    if (lane == 0u) {
        atomicStore(&of_group, 0u); // WGSL says that it is 0 already; on Mesa 22.3's lavapipe it is not
    }
    workgroupBarrier();
    let first = group_number(group, groups) * 256u * EACH + lane;
    if (ONE_OUTER) {
        atomicStore(&of_group, 0u); // not all drivers clear it between workgroups
        workgroupBarrier();
    }
    var most = 0u;
    for (var i = 0u; i < EACH; i++) {
        let block = first + 256u * i;
        if (block < sizes.blocks) {
            let range = range_at(block);
            let a = select(numerator(range), 0u, range.poisoned);
            most = max(most, a);
            if (!ONE_OUTER) {
                atomicMax(&largest[block_of(block)], a);
            }
        }
    }
    if (ONE_OUTER) {
        atomicMax(&of_group, most);
        workgroupBarrier();
        if (lane == 0u) {
            atomicMax(&largest[0], atomicLoad(&of_group));
        }
    }
}
