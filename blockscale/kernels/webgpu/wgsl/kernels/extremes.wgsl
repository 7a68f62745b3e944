// SPDX-License-Identifier: BSD-3-Clause
// The largest and smallest numbers of blocks, merged from slices of them: a team of TEAM
// invocations takes a slice, its units one after another. `work` starts as zeros: [KEYS, blocks].
// needs: memory/grid, statistics/{statistic}, statistics/sum, memory/reading/{reading}
// needs: statistics/team/{team}
@group(0) @binding(work) var<storage, read_write> work: array<atomic<u32>>;

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>,
        @builtin(local_invocation_index) lane: u32) {
    let team = group_number(group, groups) * (256u / TEAM) + lane / TEAM;
    let block = team % sizes.blocks;
    let slice = team / sizes.blocks;
    var found = NOTHING;
    if (slice < sizes.slices) {
        let end = min((slice + 1u) * sizes.slice, units());
        for (var unit = slice * sizes.slice + lane % TEAM; unit < end; unit += TEAM) {
            found = max(found, keys_at(block, unit));
        }
    }
    found = team_max(found, lane);
    if (lane % TEAM == 0u && slice < sizes.slices) {
        for (var i = 0u; i < KEYS; i++) {
            atomicMax(&work[i * sizes.blocks + block], key(found, i));
        }
    }
}
