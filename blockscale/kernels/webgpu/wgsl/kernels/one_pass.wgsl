// SPDX-License-Identifier: BSD-3-Clause
// Blocks that follow one another: their scales are chosen and their codes or values written in one
// pass over memory. A team of TEAM invocations takes a block; TEAMS of them are a workgroup, whose
// first invocations choose the scales of all.
// needs: memory/grid, choose/{rule}, step/{step}, kernels/one_pass/{finding}
// needs: kernels/one_pass/scales_{scales}, stored_params/outer_{given_outer}, result/{result}
var<workgroup> steps: array<Step, TEAMS>;

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>,
        @builtin(local_invocation_index) lane: u32) {
    let first = group_number(group, groups) * TEAMS; // block, of those that are bound
    let start = (first + lane / TEAM) * sizes.block;
    let there = first + lane / TEAM < sizes.blocks;
    let length = select(0u, min(sizes.block, sizes.bound - start), there);
    let share = Share(start, length, lane % TEAM);
    publish_stats(share, lane);
    workgroupBarrier();
    if (lane < TEAMS && first + lane < sizes.blocks) {
        let block = sizes.first / sizes.block + first + lane;
        let outer = given_outer(block);
        let chosen = choose(range_of_team(lane), outer);
        steps[lane] = step_of(chosen.scale, chosen.zero, outer, chosen.offset);
        keep(lane, chosen);
    }
    workgroupBarrier();
    if (first < sizes.blocks) {
        keep_words(lane, sizes.first / sizes.block + first, min(TEAMS, sizes.blocks - first));
    }
    write(share, steps[lane / TEAM]);
}

fn write(share: Share, s: Step) {
    for (var chunk = 0u; chunk < QUADS / (CHUNK / 4u); chunk++) {
        let place = place_of(share, chunk * (CHUNK / 4u));
        if (place >= share.length) {
            return;
        }
        var written = written_from(share.start + place);
        for (var j = 0u; j < CHUNK / 4u; j++) {
            let i = share.start + place + 4u * j;
            let x = read_again(chunk * (CHUNK / 4u) + j, i / 4u);
            written = put4(written, i, made4(x, s, i));
        }
    }
}

//# extremes
// Ranges of a workgroup's blocks, from their extremes.
// needs: kernels/one_pass/look
fn publish_stats(share: Share, lane: u32) {
    let found = look(share, lane);
    if (share.member == 0u) {
        found_of_teams[lane / TEAM] = found;
    }
}

fn range_of_team(team: u32) -> Range {
    return range_of(found_of_teams[team]);
}

//# held
// An invocation's numbers, kept from the first reading of a block to the second.
var<private> held: array<vec4<u32>, QUADS>;

fn read_first(quad: u32, at: u32) -> vec4<u32> {
    held[quad] = load4(at);
    return held[quad];
}

fn read_again(quad: u32, at: u32) -> vec4<u32> {
    return held[quad];
}

//# look
// The extremes of an invocation's block, found by its team.
// needs: statistics/{statistic}, statistics/sum, statistics/team/{team}, kernels/one_pass/share
var<workgroup> found_of_teams: array<Keys, TEAMS>;

fn look(share: Share, lane: u32) -> Keys {
    var found = NOTHING;
    for (var quad = 0u; quad < QUADS; quad++) {
        let place = place_of(share, quad);
        if (place < share.length) {
            let four = read_first(quad, quad_at(share, place));
            let last = share.length - place;
            let y = select(four.x, four.y, last > 1u);
            let z = select(four.x, four.z, last > 2u);
            let w = select(four.x, four.w, last > 3u);
            found = max(found, max(max(keys_of(four.x), keys_of(y)), max(keys_of(z), keys_of(w))));
        }
    }
    return team_max(found, lane);
}

//# means
// Means of a workgroup's blocks, of all magnitudes or of those above 0.7 of their mean (numerics.md,
// 3.2).
// needs: kernels/one_pass/look, statistics/sum, choose/{rule}, arithmetic/{arithmetic}/multiply
var<workgroup> sums_of_teams: array<Sum, TEAMS>;

fn sum_of(share: Share, lane: u32, field: u32, least: u32, strictly: bool) -> Sum {
    var sum = Sum(0u, 0u, 0u);
    for (var quad = 0u; quad < QUADS; quad++) {
        let place = place_of(share, quad);
        if (place < share.length) {
            let four = read_again(quad, quad_at(share, place));
            for (var i = 0u; i < min(share.length - place, 4u); i++) {
                sum = both(sum, counted(four[i], field, least, strictly));
            }
        }
    }
    return team_sum(sum, lane);
}

fn mean_of_sum(sum: Sum, field: u32) -> u32 {
    return mean_of(vec2(sum.low, sum.high), sum.count, field);
}

fn publish_stats(share: Share, lane: u32) {
    let found = look(share, lane);
    let field = field_of(found);
    var sum = sum_of(share, lane, field, 0u, false);
    if (ABOVE) {
        sum = sum_of(share, lane, field, multiply(0x3f333333u, mean_of_sum(sum, field)), true);
    }
    if (share.member == 0u) {
        found_of_teams[lane / TEAM] = found;
        sums_of_teams[lane / TEAM] = sum;
    }
}

fn range_of_team(team: u32) -> Range {
    let largest = found_of_teams[team];
    let mean = mean_of_sum(sums_of_teams[team], field_of(largest));
    return Range(mean | 0x80000000u, mean, largest >= 0x7f800000u);
}

//# share
// What an invocation has of a block: QUADS fours, which lie in chunks of CHUNK elements, TEAM
// chunks apart.
// needs: memory/load/{load}, kernels/one_pass/{keeping}
struct Share {
    start: u32,  // of the block, in what is bound
    length: u32, // of the block; 0 where there is none
    member: u32, // of its team
}

fn place_of(share: Share, quad: u32) -> u32 {
    return (quad / (CHUNK / 4u) * TEAM + share.member) * CHUNK + quad % (CHUNK / 4u) * 4u;
}

fn quad_at(share: Share, place: u32) -> u32 {
    return (share.start + place) / 4u;
}

//# reread
// An invocation's numbers, which are too many to be kept: the second reading is from caches.
fn read_first(quad: u32, at: u32) -> vec4<u32> {
    return load4(at);
}

fn read_again(quad: u32, at: u32) -> vec4<u32> {
    return load4(at);
}

//# scales_dropped
// Scales that nobody asks for.
fn keep(team: u32, chosen: Chosen) {
}

fn keep_words(lane: u32, first: u32, count: u32) {
}

//# scales_kept
// Scales of a workgroup's blocks, as stored, which together fill whole words.
// needs: stored_params/store/scale, stored_params/store/scale_{stored_scale}
// needs: stored_params/store/zero_{stored_zero}, stored_params/store/zeros_{store_zeros}
// needs: stored_params/store/offset_{stored_offset}, stored_params/store/offsets_{store_offsets}
var<workgroup> scale_of_teams: array<u32, TEAMS>;
var<workgroup> zero_of_teams: array<u32, TEAMS>;
var<workgroup> offset_of_teams: array<u32, TEAMS>;

fn keep(team: u32, chosen: Chosen) {
    scale_of_teams[team] = stored_scale(chosen.scale);
    zero_of_teams[team] = stored_zero(chosen.zero);
    offset_of_teams[team] = stored_offset(chosen.offset);
}

// After all teams have kept theirs. lane: which word; first: the workgroup's first block
fn keep_words(lane: u32, first: u32, count: u32) {
    let scales_a_word = 32u / SCALE_BITS;
    if (lane * scales_a_word < count) {
        var word = 0u;
        for (var i = 0u; i < scales_a_word && lane * scales_a_word + i < count; i++) {
            word |= scale_of_teams[lane * scales_a_word + i] << (i * SCALE_BITS);
        }
        put_scales(first / scales_a_word + lane, word);
    }
    let zeros_a_word = 32u / ZERO_BITS;
    if (lane * zeros_a_word < count) {
        var word = 0u;
        for (var i = 0u; i < zeros_a_word && lane * zeros_a_word + i < count; i++) {
            word |= zero_of_teams[lane * zeros_a_word + i] << (i * ZERO_BITS);
        }
        put_zeros(first / zeros_a_word + lane, word);
    }
    let offsets_a_word = 32u / OFFSET_BITS;
    if (lane * offsets_a_word < count) {
        var word = 0u;
        for (var i = 0u; i < offsets_a_word && lane * offsets_a_word + i < count; i++) {
            word |= offset_of_teams[lane * offsets_a_word + i] << (i * OFFSET_BITS);
        }
        put_offsets(first / offsets_a_word + lane, word);
    }
}
