// SPDX-License-Identifier: BSD-3-Clause
// The sums of blocks' magnitudes, merged as in kernels/extremes. `totals` starts as zeros: [3, blocks].
// needs: memory/grid, statistics/{statistic}, statistics/sum, memory/reading/{reading}
// needs: statistics/team/{team}, statistics/{least}
@group(0) @binding(totals) var<storage, read_write> totals: array<atomic<u32>>;

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>,
        @builtin(local_invocation_index) lane: u32) {
    let team = group_number(group, groups) * (256u / TEAM) + lane / TEAM;
    let block = team % sizes.blocks;
    let slice = team / sizes.blocks;
    var sum = Sum(0u, 0u, 0u);
    if (slice < sizes.slices) {
        let field = field_of(largest_of(block));
        let least = least_of(block);
        let end = min((slice + 1u) * sizes.slice, units());
        for (var unit = slice * sizes.slice + lane % TEAM; unit < end; unit += TEAM) {
            let read = numbers_at(block, unit);
            for (var i = 0u; i < read.count; i++) {
                sum = both(sum, counted(read.four[i], field, least, STRICTLY));
            }
        }
    }
    sum = team_sum(sum, lane);
    if (lane % TEAM == 0u && slice < sizes.slices) {
        let before = atomicAdd(&totals[block], sum.low);
        let carry = select(0u, 1u, before + sum.low < before);
        atomicAdd(&totals[sizes.blocks + block], sum.high + carry);
        atomicAdd(&totals[2u * sizes.blocks + block], sum.count);
    }
}
