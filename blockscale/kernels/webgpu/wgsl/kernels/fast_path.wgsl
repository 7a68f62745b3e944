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

//# outer
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

//# dequantize
// Values of codes that follow one another, EACH units of 16 bytes an invocation, a workgroup apart:
// all is read before anything is computed. Units share a step. What needs exact arithmetic of
// integers is left for the end.
// needs: memory/grid, memory/load/fours_in_stream, blocks/{blocks}, stored_params/step, code/{how}
// needs: memory/float/{dtype}, fast_path_memory/narrow/{narrow}
@group(0) @binding(values) var<storage, read_write> values: array<vec4<u32>>;

fn unit_of_group(first: u32, k: u32, lane: u32) -> u32 {
    return min(first + k * GROUP + lane, (sizes.bound - 1u) / UNIT);
}

@compute @workgroup_size(GROUP)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>,
        @builtin(local_invocation_index) lane: u32) {
    let first = group_number(group, groups) * GROUP * EACH;
    var low: array<vec4<u32>, EACH>;
    var high: array<vec4<u32>, EACH>;
    var steps: array<Step, EACH>;
    for (var k = 0u; k < EACH; k++) {
        let i = unit_of_group(first, k, lane) * UNIT;
        low[k] = codes4(i);
        if (UNIT == 8u) {
            high[k] = codes4(i + 4u);
        }
        steps[k] = step_at(block_of(sizes.first + i));
    }
    prepare_values(lane);
    var rare = 0u;
    for (var k = 0u; k < EACH; k++) {
        let unit = first + k * GROUP + lane;
        let s = steps[k];
        let found = four_decoded(low[k], s);
        var sure = s.ordinary && found.sure;
        var written = four_products(found.values, vec4(s.bits));
        if (UNIT == 8u) {
            let more = four_decoded(high[k], s);
            sure = sure && more.sure;
            written = narrowed8(written, four_products(more.values, vec4(s.bits)));
        }
        if (unit * UNIT < sizes.bound) {
            if (sure) {
                values[unit] = written;
            } else {
                rare |= 1u << k;
            }
        }
    }
    while (rare != 0u) {
        let k = firstTrailingBit(rare);
        rare &= rare - 1u;
        let unit = first + k * GROUP + lane;
        let s = step_at(block_of(sizes.first + unit * UNIT));
        var word = vec4(0u);
        for (var i = 0u; i < UNIT; i++) {
            let value = narrow(value_of(code_at(unit * UNIT + i), s));
            word[i * 4u / UNIT] |= value << (i % (UNIT / 4u) * 16u);
        }
        values[unit] = word;
    }
}
