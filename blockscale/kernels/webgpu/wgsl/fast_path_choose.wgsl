// SPDX-License-Identifier: BSD-3-Clause
// The fast path (kernels/fast_path): the range of a block that a team holds in registers, and the
// scale that is chosen from it.

//# any
// By every rule: as choose/{rule} has it.
// needs: fast_path_choose/types, choose/{rule}, step/{step}, stored_params/outer_{given_outer}
// needs: zero_point/{zero}
fn fast_choice(found: Keys, block: u32) -> FastChoice {
    let range = range_of(found);
    let outer = given_outer(block);
    let chosen = choose(range, outer);
    var s = step_of(chosen.scale, chosen.zero, outer, chosen.offset);
    if (is_zero(found)) {
        s = for_zeros(s);
    }
    let sure = s.ordinary && !range.poisoned && fits_zero(s);
    return FastChoice(s, chosen.scale, chosen.zero, sure);
}

//# float
// Scales that are float32, of blocks whose extremes and scale are ordinary: fl(a / L) from a product
// and an integer remainder. The step's inverse is the device's own division, which may be 2.5 ulps
// off: fast_path_code/scaled/quotient knows.
// needs: fast_path_choose/types, fast_path_choose/spread_{numerator}, fast_path_choose/zero_{zero}
// needs: choose/{rule}, hardware/{hardware}, bits/corrected, fast_path_code/tie_break/{tie_break}
fn fast_choice(found: Keys, block: u32) -> FastChoice {
    let spread = spread_of(found);
    let near = product(spread, INVERSE_LEVELS);
    let scale = select(corrected(spread, near, LEVELS), SMALLEST_NORMAL, is_zero(found));
    let inverse = ratio(ONE, scale);
    let zero = zero_found(found, scale, inverse);
    var s = Step(scale, inverse, zero, 0u, true);
    if (is_zero(found)) {
        s = for_zeros(s);
    }
    let ordinary = ends_are_ordinary(found) && is_ordinary(spread) && is_ordinary(scale);
    return FastChoice(s, scale, zero, is_zero(found) || (ordinary && settles(scale)));
}

//# means
// Scales that are chosen from means; of teams beyond a subgroup's reach by the first neighbours.
// needs: fast_path_choose/types, fast_path_choose/mean/sums, choose/{rule}, step/{step}
// needs: fast_path_code/tie_break/{tie_break}
var<workgroup> chosen_of_teams: array<FastChoice, GROUP / TEAM>;

fn fast_choice(found: u32, block: u32) -> FastChoice {
    var choice: FastChoice;
    if (own % TEAM < REACH) {
        choice = from_mean(found);
    }
    if (TEAM > REACH) {
        workgroupBarrier();
        if (own % TEAM == 0u) {
            chosen_of_teams[own / TEAM] = choice;
        }
        workgroupBarrier();
        choice = chosen_of_teams[own / TEAM];
    }
    return choice;
}

fn from_mean(found: u32) -> FastChoice {
    let chosen = choose(Range(mean | SIGN, mean, false), 0u);
    var s = step_of(chosen.scale, chosen.zero, 0u, chosen.offset);
    let sure = s.ordinary && is_ordinary(found) && found >= 0x12800000u; // 2^-90
    let zeros = is_zero(found) && BITS > 1u; // +1 and -1 are no zeros
    if (zeros) {
        s = for_zeros(s);
    }
    return FastChoice(s, chosen.scale, chosen.zero, sure || zeros);
}

//# spread_magnitude
// The largest magnitude.
// needs: fast_path_choose/find/magnitude
fn spread_of(found: Keys) -> u32 {
    return found;
}

fn ends_are_ordinary(found: Keys) -> bool {
    return true; // as the spread is
}

//# spread_spread
// From the smallest number, at most 0, to the largest, at least 0.
// needs: fast_path_choose/find/both, hardware/{hardware}, step/step
fn spread_of(found: Keys) -> u32 {
    return sum(found.x, found.y);
}

fn ends_are_ordinary(found: Keys) -> bool {
    return (found.x == 0u || is_ordinary(found.x)) && (found.y == 0u || is_ordinary(found.y));
}

//# two_level
// Scales that are minifloats under one of float32, of blocks of ordinary numbers: fl(a / L) from a
// product and an integer remainder, in outer scales by the device's own reciprocal, which with the
// product is six units of the last place off at most, unless that comes near a tie of two codes. The
// step's inverse is the device's own, too.
// needs: fast_path_choose/types, fast_path_choose/spread_{numerator}
// needs: stored_params/outer_{given_outer}, choose/{rule}, hardware/{hardware}, bits/corrected
// needs: step/inner/minifloat, fast_path_code/tie_break/{tie_break}
const INNER_FRACTION: u32 = 23u - INNER_MBITS; // bits of a float32 that codes leave out

fn fast_choice(found: Keys, block: u32) -> FastChoice {
    let outer = given_outer(block);
    let largest = spread_of(found);
    let wanted = corrected(largest, product(largest, INVERSE_LEVELS), LEVELS);
    let units = product(wanted, ratio(ONE, outer));
    let bounded = select(clamp(units, INNER_SMALLEST_NORMAL, INNER_LARGEST), INNER_SMALLEST_NORMAL,
                         is_zero(found));
    let tie = (units + 8u + (1u << (INNER_FRACTION - 1u))) & ((1u << INNER_FRACTION) - 1u);
    let sure = is_zero(found) || (is_ordinary(largest) && is_ordinary(wanted)
                                  && is_ordinary(units) && tie > 16u);
    var code = inner_code(bounded);
    if (!sure || !is_ordinary(outer)) { // scales are kept, whatever becomes of their blocks
        code = choose(range_of(found), outer).scale;
    }
    let scale = product(inner_value(code), outer);
    var s = Step(scale, ratio(ONE, scale), 0, 0u, true);
    if (is_zero(found)) {
        s = for_zeros(s);
    }
    let right = sure && is_ordinary(scale) && settles(scale);
    return FastChoice(s, code, 0, is_ordinary(outer) && (is_zero(found) || right));
}

//# types
// What is prepared for a block. sure: its codes and values are what products and sums of normal
// numbers give, and its scale is right.
// needs: step/step
struct FastChoice {
    step: Step,
    scale: u32,
    zero: i32,
    sure: bool,
}

// Of a block of zeros any step makes the same codes and values.
fn for_zeros(s: Step) -> Step {
    return Step(0x3f800000u, 0x3f800000u, s.zero, 0u, true);
}

//# zero_integer
// clamp(qmin - R(lo / step), qmin, qmax).
// needs: hardware/{hardware}, step/step, fast_path_code/tie_break/integer
fn zero_found(found: Keys, scale: u32, inverse: u32) -> i32 {
    var near = vec4(min(product(found.y, inverse), bitcast<u32>(f32(HIGH - LOW + 1))));
    let s = Step(scale, inverse, 0, 0u, true);
    if (is_near_a_tie(near, s)) {
        near = settled4(vec4(found.y), near, s);
    }
    let steps = i32(sum(near.x, 0x4b400000u) & 0x3fffffu);
    return min(LOW + steps, HIGH);
}

//# zero_none
// Formats without a zero point.
fn zero_found(found: Keys, scale: u32, inverse: u32) -> i32 {
    return 0;
}

//# find/both
// The largest number and the smallest one negated, both at least 0: of numbers as integers, the
// largest with a sign and the largest without one. What is not finite is larger than all that is.
// needs: statistics/both, statistics/sum, statistics/team/{team}
fn with_four(found: Keys, x: vec4<u32>) -> Keys {
    let signed = bitcast<vec4<i32>>(x);
    let high = max(max(signed.x, signed.y), max(signed.z, signed.w));
    let low = max(max(x.x, x.y), max(x.z, x.w));
    return max(found, vec2(u32(max(high, 0)), low));
}

fn keys_found(found: Keys) -> Keys {
    return vec2(found.x, select(0u, found.y & 0x7fffffffu, found.y > 0x80000000u));
}

fn is_zero(found: Keys) -> bool {
    return (found.x | found.y) == 0u;
}

//# find/magnitude
// The largest magnitude; what is not finite is larger than all that is.
// needs: statistics/magnitude, statistics/sum, statistics/team/{team}
fn with_four(found: Keys, x: vec4<u32>) -> Keys {
    let size = x & vec4(0x7fffffffu);
    return max(found, max(max(size.x, size.y), max(size.z, size.w)));
}

fn keys_found(found: Keys) -> Keys {
    return found;
}

fn is_zero(found: Keys) -> bool {
    return found == 0u;
}

//# mean/none
// Scales that are not chosen from means.
// needs: fast_path_choose/find/{find}, statistics/sum
fn with_sizes(sum: Sum, x: vec4<u32>, found: Keys, turn: u32) -> Sum {
    return sum;
}

fn keep_mean(sum: Sum, found: Keys, lane: u32) {}

//# mean/sums
// Means of magnitudes (docs/numerics.md, 3.2), of blocks whose largest one is ordinary: floor(|x|
// 2^(30 - e)) is a product and a conversion, and what is flushed on the way is below one. Of teams
// beyond a subgroup's reach only the first neighbours compute the mean, and tell the others.
// needs: hardware/{hardware}, statistics/sum, choose/{rule}, arithmetic/{arithmetic}/multiply
// needs: bits/parts
var<private> mean: u32;
var<private> least: u32; // fl(0.7f mean)
var<private> own: u32; // the invocation
var<workgroup> means_of_teams: array<vec2<u32>, GROUP / TEAM>;

fn with_sizes(sum: Sum, x: vec4<u32>, found: u32, turn: u32) -> Sum {
    let size = x & vec4(MAGNITUDE);
    let factor = (284u - field_of(found)) << 23u; // 2^(30 - e)
    let units = vec4<u32>(bitcast<vec4<f32>>(four_products(size, vec4(factor))));
    let counts = select(vec4(1u), vec4<u32>(size > vec4(least)), turn == 1u);
    let four = units * counts;
    let low = four.x + four.y; // each is below 2^31
    let high = four.z + four.w;
    let some = both(Sum(low, 0u, 0u), Sum(high, 0u, counts.x + counts.y + counts.z + counts.w));
    return both(sum, some);
}

fn keep_mean(sum: Sum, found: u32, lane: u32) {
    own = lane;
    if (lane % TEAM < REACH) {
        mean = mean_of(vec2(sum.low, sum.high), sum.count, field_of(found));
        least = multiply(0x3f333333u, mean);
    }
    if (TEAM > REACH) {
        workgroupBarrier();
        if (lane % TEAM == 0u) {
            means_of_teams[lane / TEAM] = vec2(mean, least);
        }
        workgroupBarrier();
        let of_team = means_of_teams[lane / TEAM];
        mean = of_team.x;
        least = of_team.y;
    }
}

//# range/extremes
// What the scale of a block is chosen from, number by number.
// needs: fast_path_memory/lanes, statistics/{statistic}
fn exact_range(block: u32) -> Range {
    var found = NOTHING;
    for (var i = 0u; i < sizes.block; i++) {
        found = max(found, keys_of(number_at(element_of(block, i))));
    }
    return range_of(found);
}

//# range/means
// What the scale of a block is chosen from, number by number: a mean.
// needs: fast_path_memory/lanes, statistics/{statistic}, statistics/sum, choose/{rule}
// needs: arithmetic/{arithmetic}/multiply
fn exact_range(block: u32) -> Range {
    var found = NOTHING;
    for (var i = 0u; i < sizes.block; i++) {
        found = max(found, keys_of(number_at(element_of(block, i))));
    }
    let field = field_of(found);
    var own = 0u;
    for (var turn = 0u; turn < MEANS; turn++) {
        let least = multiply(0x3f333333u, own);
        var sum = Sum(0u, 0u, 0u);
        for (var i = 0u; i < sizes.block; i++) {
            sum = both(sum, counted(number_at(element_of(block, i)), field, least, turn == 1u));
        }
        own = mean_of(vec2(sum.low, sum.high), sum.count, field);
    }
    return Range(own | 0x80000000u, own, false);
}
