// SPDX-License-Identifier: BSD-3-Clause
// The scale of each block, by passes of their own over the numbers (primitives/choose.py).

//# extremes
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

//# sums
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

//# finish
// What was found in blocks -> their scales, as stored, with zero points and offsets: TOGETHER
// blocks, which fill whole words, to an invocation.
// needs: memory/grid, choose/{rule}, statistics/block_stats/{block_stats}
// needs: stored_params/outer_{given_outer}, stored_params/store/scale
// needs: stored_params/store/scale_{stored_scale}, stored_params/store/zero_{stored_zero}
// needs: stored_params/store/zeros_{store_zeros}, stored_params/store/offset_{stored_offset}
// needs: stored_params/store/offsets_{store_offsets}

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>,
        @builtin(local_invocation_index) lane: u32) {
    let first = (group_number(group, groups) * 256u + lane) * TOGETHER;
    let end = min(first + TOGETHER, sizes.blocks);
    var scale = 0u;
    var zero = 0u;
    var offset = 0u;
    for (var block = first; block < end; block++) {
        let chosen = choose(range_at(block), given_outer(block));
        zero |= stored_zero(chosen.zero) << (block * ZERO_BITS % 32u);
        scale |= stored_scale(chosen.scale) << (block * SCALE_BITS % 32u);
        offset |= stored_offset(chosen.offset) << (block * OFFSET_BITS % 32u);
        if ((block + 1u) * SCALE_BITS % 32u == 0u || block + 1u == end) {
            put_scales(block * SCALE_BITS / 32u, scale);
            scale = 0u;
        }
        if ((block + 1u) * ZERO_BITS % 32u == 0u || block + 1u == end) {
            put_zeros(block * ZERO_BITS / 32u, zero);
            zero = 0u;
        }
        if ((block + 1u) * OFFSET_BITS % 32u == 0u || block + 1u == end) {
            put_offsets(block * OFFSET_BITS / 32u, offset);
            offset = 0u;
        }
    }
}

//# numerators
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

//# outer
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

//# spread
// The outer scale of each block as float32, from those that blocks share.
// needs: memory/grid, blocks/{blocks}, stored_params/scale_{given_scale}
@group(0) @binding(each) var<storage, read_write> each: array<u32>;

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>,
        @builtin(local_invocation_index) lane: u32) {
    let block = group_number(group, groups) * 256u + lane;
    if (block < sizes.count) {
        each[block] = given_scale(block_of(block));
    }
}
