// SPDX-License-Identifier: BSD-3-Clause
// The largest numerator of all blocks, which share one outer scale; poisoned ones are left out.
// `largest` starts as 0. A team of TEAM invocations takes BLOCKS blocks, TEAMS apart; all of their
// numbers are asked for before the first is used.
// needs: memory/grid, fast_path_memory/lanes, fast_path_choose/find/{find}
@group(0) @binding(largest) var<storage, read_write> largest: array<atomic<u32>>;
var<workgroup> of_group: atomic<u32>;

@compute @workgroup_size(GROUP)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>,
        @builtin(local_invocation_index) lane: u32) {
    let member = lane % TEAM;
    let first = group_number(group, groups) * TEAMS * BLOCKS + lane / TEAM;
    if (lane == 0u) {
        atomicStore(&of_group, 0u); // not all drivers clear it between workgroups
    }
    var held: array<vec4<u32>, UNITS * BLOCKS>;
    for (var b = 0u; b < BLOCKS; b++) {
        let block = min(first + b * TEAMS, sizes.blocks - 1u);
        for (var u = 0u; u < UNITS; u++) {
            held[b * UNITS + u] = x[place_of(block, unit_of(u, member))];
        }
    }
    var most = 0u;
    for (var b = 0u; b < BLOCKS; b++) {
        var found = NOTHING;
        for (var i = 0u; i < LANE_FOURS; i++) {
            found = with_four(found, four_of(held[b * UNITS + i / FOURS], i % FOURS));
        }
        found = team_max(found, lane);
        if (found >= 0x7f800000u) {
            found = finite_of(min(first + b * TEAMS, sizes.blocks - 1u));
        }
        most = max(most, found);
    }
    for (var side = 1u; side < REACH; side *= 2u) {
        most = max(most, subgroupShuffleXor(most, side));
    }
    workgroupBarrier();
    if (lane % REACH == 0u) {
        atomicMax(&of_group, most);
    }
    workgroupBarrier();
    if (lane == 0u) {
        atomicMax(&largest[0], atomicLoad(&of_group));
    }
}

// What counts of a block that has numbers that are not finite: nothing, or the finite ones.
fn finite_of(block: u32) -> u32 {
    var found = NOTHING;
    for (var i = 0u; !POISONS && i < sizes.block; i++) {
        let at = element_of(block, i);
        found = max(found, keys_of(four_of(x[at / (4u * FOURS)], at / 4u % FOURS)[at % 4u]));
    }
    return found;
}
