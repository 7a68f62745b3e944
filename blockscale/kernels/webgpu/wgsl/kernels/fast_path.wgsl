// SPDX-License-Identifier: BSD-3-Clause
// Blocks that are all full, in one pass that keeps much of memory under way. A team of TEAM
// invocations takes BLOCKS blocks, of each UNITS units of 16 bytes an invocation; all of them are
// asked for before the first is used. Numbers are multiplied by a step's reciprocal; fours of which
// one comes near a tie are settled after that. Blocks that ask for exact arithmetic of integers are
// left for the end (fast_path_memory/exact_fallback).
// needs: memory/grid, fast_path_memory/lanes, fast_path_choose/find/{find}, statistics/sum
// needs: fast_path_choose/mean/{mean}, fast_path_choose/{fast_choose}
// needs: fast_path_code/scaled/{scaled}, fast_path_memory/result/{result}
// needs: fast_path_memory/exact_fallback

@compute @workgroup_size(GROUP)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>,
        @builtin(local_invocation_index) lane: u32) {
    let member = lane % TEAM;
    let first = (group_number(group, groups) * TEAMS + lane / TEAM) * BLOCKS;
    var held: array<vec4<u32>, UNITS * BLOCKS>;
    for (var b = 0u; b < BLOCKS; b++) {
        let block = min(first + b, sizes.blocks - 1u);
        for (var u = 0u; u < UNITS; u++) {
            held[b * UNITS + u] = x[place_of(block, unit_of(u, member))];
        }
    }
    prepare_code(lane);
    var rare = 0u;
    for (var b = 0u; b < BLOCKS; b++) {
        var found = NOTHING;
        for (var i = 0u; i < LANE_FOURS; i++) {
            found = with_four(found, four_of(held[b * UNITS + i / FOURS], i % FOURS));
        }
        found = team_max(found, lane);
        for (var turn = 0u; turn < MEANS; turn++) { // of all magnitudes, then of large ones
            var sum = Sum(0u, 0u, 0u);
            for (var i = 0u; i < LANE_FOURS; i++) {
                let four = four_of(held[b * UNITS + i / FOURS], i % FOURS);
                sum = with_sizes(sum, four, found, turn);
            }
            keep_mean(team_sum(sum, lane), found, lane);
        }
        let block = first + b;
        let there = block < sizes.blocks;
        let s = fast_choice(keys_found(found), sizes.first / sizes.block + block);
        keep(s, block, member, b, there);
        rare |= select(0u, 1u << b, there && !s.sure);
        var near: Near;
        var ties = 0u; // of which fours
        for (var i = 0u; i < LANE_FOURS; i++) {
            near[i] = scaled4(four_of(held[b * UNITS + i / FOURS], i % FOURS), s.step);
            ties |= select(0u, 1u << i, is_near_a_tie(near[i], s.step));
        }
        while (ties != 0u) { // arrays that are indexed at run time would lie in slow memory
            let which = firstTrailingBit(ties);
            ties &= ties - 1u;
            var four = vec4(0u);
            var found_near = vec4(0u);
            for (var i = 0u; i < LANE_FOURS; i++) {
                let own = four_of(held[b * UNITS + i / FOURS], i % FOURS);
                four = select(four, own, i == which);
                found_near = select(found_near, near[i], i == which);
            }
            let settled = settled4(four, found_near, s.step);
            for (var i = 0u; i < LANE_FOURS; i++) {
                near[i] = select(near[i], settled, i == which);
            }
        }
        put(block, member, &near, s, there && s.sure);
    }
    while (rare != 0u) {
        take_rare(first + firstTrailingBit(rare), member);
        rare &= rare - 1u;
    }
}
