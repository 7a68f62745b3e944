// SPDX-License-Identifier: BSD-3-Clause
// What the scale of a block is chosen from: extremes and sums, merged by teams of invocations.

//# bare
// The largest and the smallest number of a block, of which neither need hold 0: for offsets. Keys
// order as the numbers do, and 0 is below all; the second is of the number negated.
// needs: statistics/range
alias Keys = vec2<u32>;
const NOTHING: Keys = vec2<u32>(0u, 0u);
const KEYS = 2u;

fn keys_of(x: u32) -> Keys {
    if (!POISONS && (x & 0x7fffffffu) >= 0x7f800000u) {
        return NOTHING;
    }
    let up = key_of(x);
    return vec2(up, ~up);
}

fn key_of(x: u32) -> u32 {
    return select(x | 0x80000000u, ~x, x >= 0x80000000u);
}

fn number_of(key: u32) -> u32 {
    return select(~key, key & 0x7fffffffu, key >= 0x80000000u);
}

fn range_of(found: Keys) -> Range {
    if (found.x == 0u) {
        return Range(0u, 0u, false);
    }
    let low = number_of(~found.y);
    let high = number_of(found.x);
    // 0 has no sign here: of 0 and -0 in a block either may be found (core/blocks.py)
    return Range(select(low, 0u, low == 0x80000000u), select(high, 0u, high == 0x80000000u),
                 max(found.x, found.y) >= 0xff800000u);
}

fn key(found: Keys, i: u32) -> u32 {
    return found[i];
}

fn keys(first: u32, second: u32) -> Keys {
    return vec2(first, second);
}

//# both
// The largest number of a block and its smallest one negated, both at least 0. What is not finite:
// as in statistics/magnitude.
// needs: statistics/range
alias Keys = vec2<u32>;
const NOTHING: Keys = vec2<u32>(0u, 0u);
const KEYS = 2u;

fn keys_of(x: u32) -> Keys {
    let size = x & 0x7fffffffu;
    let kept = select(size, 0u, !POISONS && size >= 0x7f800000u);
    return select(vec2(0u, kept), vec2(kept, 0u), x == size);
}

fn range_of(found: Keys) -> Range {
    let low = select(found.y | 0x80000000u, 0u, found.y == 0u);
    return Range(low, found.x, max(found.x, found.y) >= 0x7f800000u);
}

fn key(found: Keys, i: u32) -> u32 {
    return found[i];
}

fn keys(first: u32, second: u32) -> Keys {
    return vec2(first, second);
}

//# high
// The largest number of a block, at least 0. What is not finite: as in statistics/magnitude.
// needs: statistics/range
alias Keys = u32;
const NOTHING: Keys = 0u;
const KEYS = 1u;

fn keys_of(x: u32) -> Keys {
    let size = x & 0x7fffffffu;
    if (size >= 0x7f800000u) {
        return select(0u, size, POISONS);
    }
    return select(x, 0u, x != size);
}

fn range_of(found: Keys) -> Range {
    return Range(0u, found, found >= 0x7f800000u);
}

fn key(found: Keys, i: u32) -> u32 {
    return found;
}

fn keys(first: u32, second: u32) -> Keys {
    return first;
}

//# least_above
// Sums of the magnitudes above 0.7 of their mean, fl(0.7f mean) (TWN; docs/numerics.md, 3.2).
// needs: choose/{rule}, arithmetic/{arithmetic}/multiply
@group(0) @binding(largest) var<storage, read> largest: array<u32>;
@group(0) @binding(first) var<storage, read> first: array<u32>;
const STRICTLY = true;

fn largest_of(block: u32) -> u32 {
    return largest[block];
}

fn least_of(block: u32) -> u32 {
    let sum = vec2(first[block], first[sizes.blocks + block]);
    let mean = mean_of(sum, first[2u * sizes.blocks + block], field_of(largest[block]));
    return multiply(0x3f333333u, mean);
}

//# least_any
// Sums of all magnitudes; `largest` are those of blocks.
@group(0) @binding(largest) var<storage, read> largest: array<u32>;
const STRICTLY = false;

fn largest_of(block: u32) -> u32 {
    return largest[block];
}

fn least_of(block: u32) -> u32 {
    return 0u;
}

//# magnitude
// The largest magnitude of a block, as the bits of a float32, which order as numbers do. Of formats
// that poison, a NaN or an infinity is larger than all numbers; others leave them out.
// needs: statistics/range
alias Keys = u32;
const NOTHING: Keys = 0u;
const KEYS = 1u;

fn keys_of(x: u32) -> Keys {
    let size = x & 0x7fffffffu;
    return select(size, 0u, !POISONS && size >= 0x7f800000u);
}

fn range_of(found: Keys) -> Range {
    return Range(select(found | 0x80000000u, 0u, found == 0u), found, found >= 0x7f800000u);
}

fn key(found: Keys, i: u32) -> u32 {
    return found;
}

fn keys(first: u32, second: u32) -> Keys {
    return first;
}

//# range
// What the scale of a block is chosen from (docs/numerics.md, 3.1), float32 bits.
struct Range {
    low: u32,       // the smallest finite value
    high: u32,      // the largest; of means, that mean
    poisoned: bool, // a NaN or an infinity is in the block, and the scale can say so
}

//# sum
// Sums of magnitudes as whole numbers, so that they do not depend on their order (numerics.md, 3.2).
struct Sum {
    low: u32, // the sum is low + 2^32 high
    high: u32,
    count: u32, // of numbers that are in it
}

fn both(a: Sum, b: Sum) -> Sum {
    let low = a.low + b.low;
    return Sum(low, a.high + b.high + select(0u, 1u, low < a.low), a.count + b.count);
}

// E(v) of the largest magnitude of a block, at least -126, plus 127: its exponent field but for 0.
fn field_of(largest: u32) -> u32 {
    return max(largest >> 23u, 1u);
}

// floor(|x| 2^(30 - e)), with e = field - 127 at least x's own exponent.
fn units_of(x: u32, field: u32) -> u32 {
    let own = (x >> 23u) & 0xffu;
    let whole = (x & 0x7fffffu) | select(0x800000u, 0u, own == 0u);
    let below = field - max(own, 1u);
    if (below <= 7u) {
        return whole << (7u - below);
    }
    return select(whole >> (below - 7u), 0u, below > 30u);
}

// A number in a sum of those that are finite and larger than `least`.
fn counted(x: u32, field: u32, least: u32, strictly: bool) -> Sum {
    let size = x & 0x7fffffffu;
    if (size >= 0x7f800000u || (strictly && size <= least)) {
        return Sum(0u, 0u, 0u);
    }
    return Sum(units_of(size, field), 0u, 1u);
}

//# block_stats/extremes
// The range of a block from what kernels/choose/extremes left.
// needs: statistics/{statistic}
@group(0) @binding(work) var<storage, read> work: array<u32>;

fn range_at(block: u32) -> Range {
    return range_of(keys(work[block], work[(KEYS - 1u) * sizes.blocks + block]));
}

//# block_stats/means
// The mean magnitude of a block from what kernels/choose/extremes and kernels/choose/sums left.
// needs: statistics/{statistic}, statistics/sum, choose/{rule}
@group(0) @binding(work) var<storage, read> work: array<u32>;
@group(0) @binding(totals) var<storage, read> totals: array<u32>;

fn range_at(block: u32) -> Range {
    let largest = work[block];
    let sum = vec2(totals[block], totals[sizes.blocks + block]);
    let mean = mean_of(sum, totals[2u * sizes.blocks + block], field_of(largest));
    return Range(mean | 0x80000000u, mean, largest >= 0x7f800000u);
}

//# team/alone
// Teams of one invocation.
fn team_max(mine: Keys, lane: u32) -> Keys {
    return mine;
}

fn team_sum(mine: Sum, lane: u32) -> Sum {
    return mine;
}

//# team/mixed
// Teams of more neighbours than a subgroup surely has, REACH: those meet first, then all of them in
// the workgroup's memory. All get the result.
var<workgroup> keys_of_lanes: array<Keys, GROUP>;

fn team_max(mine: Keys, lane: u32) -> Keys {
    var found = mine;
    for (var side = 1u; side < REACH; side *= 2u) {
        found = max(found, subgroupShuffleXor(found, side));
    }
    for (var side = REACH; side < TEAM; side *= 2u) {
        workgroupBarrier();
        keys_of_lanes[lane] = found;
        workgroupBarrier();
        found = max(found, keys_of_lanes[lane ^ side]);
    }
    return found;
}

var<workgroup> sums_of_lanes: array<Sum, GROUP>;

fn team_sum(mine: Sum, lane: u32) -> Sum {
    var sum = mine;
    for (var side = 1u; side < REACH; side *= 2u) {
        sum = both(sum, Sum(subgroupShuffleXor(sum.low, side), subgroupShuffleXor(sum.high, side),
                            subgroupShuffleXor(sum.count, side)));
    }
    for (var side = REACH; side < TEAM; side *= 2u) {
        workgroupBarrier();
        sums_of_lanes[lane] = sum;
        workgroupBarrier();
        sum = both(sum, sums_of_lanes[lane ^ side]);
    }
    return sum;
}

//# team/subgroup
// Teams of TEAM neighbours within a subgroup; all of them get the result. Needs the feature
// "subgroup"; naga knows it without "enable subgroups;", which browsers ask for.
fn team_max(mine: Keys, lane: u32) -> Keys {
    var found = mine;
    for (var side = 1u; side < TEAM; side *= 2u) {
        found = max(found, subgroupShuffleXor(found, side));
    }
    return found;
}

fn team_sum(mine: Sum, lane: u32) -> Sum {
    var sum = mine;
    for (var side = 1u; side < TEAM; side *= 2u) {
        sum = both(sum, Sum(subgroupShuffleXor(sum.low, side), subgroupShuffleXor(sum.high, side),
                            subgroupShuffleXor(sum.count, side)));
    }
    return sum;
}

//# team/workgroup
// Teams of TEAM neighbours, who meet in the workgroup's memory; all of them get the result.
var<workgroup> keys_of_lanes: array<Keys, 256>;
var<workgroup> sums_of_lanes: array<Sum, 256>;

fn team_max(mine: Keys, lane: u32) -> Keys {
    var found = mine;
    for (var side = 1u; side < TEAM; side *= 2u) {
        keys_of_lanes[lane] = found;
        workgroupBarrier();
        found = max(found, keys_of_lanes[lane ^ side]);
        workgroupBarrier();
    }
    return found;
}

fn team_sum(mine: Sum, lane: u32) -> Sum {
    var sum = mine;
    for (var side = 1u; side < TEAM; side *= 2u) {
        sums_of_lanes[lane] = sum;
        workgroupBarrier();
        sum = both(sum, sums_of_lanes[lane ^ side]);
        workgroupBarrier();
    }
    return sum;
}
