// SPDX-License-Identifier: BSD-3-Clause
// Attention of few queries over a cache (cached_attention.py): scores, then sums of values of each
// part of the tokens, then the parts added up. ROWS queries that share a head of keys go together,
// FOURS times four; heads, rows and parts are counted in what a launch has, and head
// sizes.first_head is its first. Results do not depend on what goes together.

//# scores
// Scores of 256 tokens: TEAM lanes for a token at a time, each with PIECE quads of its features
// that have one scale, of which the next ones are TEAM further on. A token's lanes are added from
// the first to the last.
// needs: memory/grid, matmul/left, matmul/right/{right}, matmul/exact
// needs: attention/pieces/{right}, attention/mask/{mask}
// needs: arithmetic/{arithmetic}/multiply, arithmetic/{arithmetic}/add
@group(0) @binding(scores) var<storage, read_write> scores: array<u32>;
const AT_ONCE: u32 = 256u / TEAM; // tokens
const QUADS: u32 = FEATURES / 4u;
var<workgroup> queries: array<vec4<f32>, ROWS * QUADS>;
var<workgroup> sums_of_lanes: array<vec4<f32>, 256u * FOURS>;
var<workgroup> doubts_of_lanes: array<u32, 256>;
var<workgroup> doubts_of_rows: atomic<u32>; // a bit for each query

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>,
        @builtin(local_invocation_index) lane: u32) {
    let number = group_number(group, groups);
    let spans = (sizes.tokens + 255u) / 256u;
    let m = number % sizes.row_groups * ROWS;
    let head = number / sizes.row_groups / spans;
    if (head >= sizes.heads) {
        return;
    }
    prepare_right(lane);
    if (lane == 0u) {
        atomicStore(&doubts_of_rows, 0u); // wgpu does not do it, whatever WGSL says
    }
    workgroupBarrier();
    stage(lane, head, m);
    workgroupBarrier();
    let start = number / sizes.row_groups % spans * 256u;
    for (var first = start; first < min(start + 256u, sizes.tokens); first += AT_ONCE) {
        take(lane, head * sizes.tokens + min(first + lane / TEAM, sizes.tokens - 1u));
        workgroupBarrier();
        write(lane, head, m, first);
        workgroupBarrier();
    }
}

fn query_row(head: u32, m: u32) -> u32 {
    return (sizes.first_head + head) * sizes.rows + m;
}

fn stage(lane: u32, head: u32, m: u32) {
    for (var i = lane; i < ROWS * QUADS; i += 256u) {
        let row = i / QUADS;
        var bits = vec4<u32>();
        if (m + row < sizes.rows) {
            for (var c = 0u; c < 4u; c++) {
                bits[c] = left_of(0u, query_row(head, m + row), i % QUADS * 4u + c);
            }
        }
        queries[i] = bitcast<vec4<f32>>(bits);
        if (any((bits & vec4(MAGNITUDE)) > vec4(LEFT_LIMIT))) {
            atomicOr(&doubts_of_rows, 1u << row);
        }
    }
}

// The lane's share of the products of token n, of those that are bound, with all rows.
fn take(lane: u32, n: u32) {
    var low = vec4<f32>();
    var high = vec4<f32>();
    var doubt = false;
    for (var piece = lane % TEAM; piece < QUADS / PIECE; piece += TEAM) {
        let block = piece_at(n, piece * PIECE);
        doubt |= block.doubt;
        var low_part = vec4<f32>();
        var high_part = vec4<f32>();
        for (var quad = piece * PIECE; quad < piece * PIECE + PIECE; quad++) {
            let key = quad_of(n, quad, block);
            doubt |= key.doubt;
            low_part = more_products(0u, quad, key.values, low_part);
            if (FOURS > 1u) {
                high_part = more_products(4u, quad, key.values, high_part);
            }
        }
        low = fma(low_part, vec4(block.factor), low);
        high = fma(high_part, vec4(block.factor), high);
    }
    sums_of_lanes[lane * FOURS] = low;
    if (FOURS > 1u) {
        sums_of_lanes[lane * FOURS + 1u] = high;
    }
    doubts_of_lanes[lane] = u32(doubt);
}

// Of four rows from `row` on.
fn more_products(row: u32, quad: u32, key: vec4<f32>, before: vec4<f32>) -> vec4<f32> {
    var result = before;
    result.x += dot_of(queries[row * QUADS + quad], key);
    if (ROWS > 1u) {
        result.y += dot_of(queries[(row + 1u) * QUADS + quad], key);
    }
    if (ROWS > 2u) {
        result.z += dot_of(queries[(row + 2u) * QUADS + quad], key);
        result.w += dot_of(queries[(row + 3u) * QUADS + quad], key);
    }
    return result;
}

fn dot_of(a: vec4<f32>, b: vec4<f32>) -> f32 {
    return fma(a.x, b.x, fma(a.y, b.y, fma(a.z, b.z, a.w * b.w)));
}

fn write(lane: u32, head: u32, m: u32, first: u32) {
    for (var pair = lane; pair < ROWS * AT_ONCE; pair += 256u) {
        let row = pair / AT_ONCE;
        let token = first + pair % AT_ONCE;
        if (m + row >= sizes.rows || token >= sizes.tokens) {
            continue;
        }
        var near = 0.0;
        var doubt = atomicLoad(&doubts_of_rows) >> row & 1u;
        for (var i = pair % AT_ONCE * TEAM; i < pair % AT_ONCE * TEAM + TEAM; i++) {
            near += sums_of_lanes[i * FOURS + row / 4u][row % 4u];
            doubt |= doubts_of_lanes[i];
        }
        let n = head * sizes.tokens + token;
        let place = (head * sizes.rows + m + row) * sizes.count + sizes.start + token;
        scores[place] = score_of(near, doubt != 0u, head, m + row, n, sizes.start + token);
    }
}

// Products that are in doubt are summed by integers, which know what is not finite.
fn score_of(near: f32, doubt: bool, head: u32, m: u32, n: u32, token: u32) -> u32 {
    let more = added(sizes.first_head + head, m, token);
    let score = bitcast<u32>(near * bitcast<f32>(sizes.scaling) + bitcast<f32>(more));
    if (!doubt && is_finite(score)) {
        return score;
    }
    var whole = bitcast<u32>(near);
    if (doubt || !is_finite(whole)) {
        whole = exact_sum(0u, query_row(head, m), n, 0u, 1u);
    }
    return add(multiply(whole, sizes.scaling), more);
}

//# values
// Of a part, 256 tokens: the largest score of each query, e to the power of what scores are below
// it, their sum, and the sums of values times them. Powers are added in halves: lane i and i + 128,
// then i + 64 …; of values, each of SLOTS takes every SLOTS-th token, and slots are added from the
// first to the last.
// needs: memory/grid, matmul/right/{right}, attention/powers
// needs: arithmetic/{arithmetic}/multiply, arithmetic/{arithmetic}/add
@group(0) @binding(scores) var<storage, read> scores: array<u32>;
@group(0) @binding(sums) var<storage, read_write> sums: array<u32>;
@group(0) @binding(tops) var<storage, read_write> tops: array<u32>;
@group(0) @binding(totals) var<storage, read_write> totals: array<u32>;
const QUADS: u32 = FEATURES / 4u;
const SLOTS: u32 = 256u / QUADS;
var<workgroup> powers: array<vec4<u32>, 256u * FOURS>; // first, scores in their order
var<workgroup> sums_by_lane: array<vec4<f32>, 256>;
var<workgroup> doubts: atomic<u32>;
var<workgroup> verdict: u32;

// What a workgroup takes: `rows` queries from m on, `count` tokens, of which n is the first of those
// that are bound; where its scores begin, and its results.
struct Share { m: u32, rows: u32, n: u32, count: u32, score: u32, place: u32 }

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>,
        @builtin(local_invocation_index) lane: u32) {
    let number = group_number(group, groups);
    let spans = (sizes.tokens + 255u) / 256u;
    let head = number / sizes.row_groups / spans;
    if (head >= sizes.heads) {
        return;
    }
    let part = number / sizes.row_groups % spans;
    let m = number % sizes.row_groups * ROWS;
    let share = Share(
        m, min(sizes.rows - m, ROWS), head * sizes.tokens + part * 256u,
        min(sizes.tokens - part * 256u, 256u),
        (head * sizes.rows + m) * sizes.count + sizes.start + part * 256u,
        (head * sizes.parts + sizes.first_part + part) * sizes.rows + m,
    );
    prepare_right(lane);
    if (lane == 0u) {
        atomicStore(&doubts, 0u);
    }
    for (var four = 0u; four < FOURS; four++) {
        weigh(lane, four, share);
    }
    add_values(lane, share);
    settle(lane, share);
}

fn score_at(lane: u32, row: u32, share: Share) -> u32 {
    return scores[share.score + row * sizes.count + lane];
}

// Powers of four rows, and what is known of them as a whole.
fn weigh(lane: u32, four: u32, share: Share) {
    let mine = lane * FOURS + four;
    let rows = vec4(0u, 1u, 2u, 3u) + vec4(4u * four);
    let there = (rows < vec4(share.rows)) & vec4(lane < share.count);
    var own = vec4(BELOW_ALL);
    for (var r = 0u; r < 4u; r++) {
        if (there[r]) {
            own[r] = score_at(lane, rows[r], share);
        }
    }
    powers[mine] = vec4(rank(own.x), rank(own.y), rank(own.z), rank(own.w));
    for (var others = 128u; others > 0u; others /= 2u) {
        workgroupBarrier();
        if (lane < others) {
            powers[mine] = max(powers[mine], powers[mine + others * FOURS]);
        }
    }
    workgroupBarrier();
    let highest = powers[four];
    let top = vec4(ranked(highest.x), ranked(highest.y), ranked(highest.z), ranked(highest.w));
    var power = vec4<f32>();
    for (var r = 0u; r < 4u; r++) {
        if (there[r]) {
            power[r] = power_of(own[r], top[r]);
        }
    }
    sums_by_lane[lane] = power;
    workgroupBarrier();
    powers[mine] = bitcast<vec4<u32>>(power);
    for (var others = 128u; others > 0u; others /= 2u) {
        if (lane < others) {
            sums_by_lane[lane] += sums_by_lane[lane + others];
        }
        workgroupBarrier();
    }
    if (lane < 4u && rows[lane] < share.rows) {
        tops[share.place + rows[lane]] = top[lane];
        totals[share.place + rows[lane]] = bitcast<u32>(sums_by_lane[0][lane]);
    }
    workgroupBarrier();
}

fn add_values(lane: u32, share: Share) {
    var low = mat4x4<f32>();
    var high = mat4x4<f32>();
    var doubt = false;
    if (lane < SLOTS * QUADS) {
        for (var t = lane / QUADS; t < share.count; t += SLOTS) {
            let value = right_quad(0u, share.n + t, lane % QUADS);
            doubt |= value.doubt;
            low = with_value(low, value.values, bitcast<vec4<f32>>(powers[t * FOURS]));
            if (FOURS > 1u) {
                let others = bitcast<vec4<f32>>(powers[t * FOURS + 1u]);
                high = with_value(high, value.values, others);
            }
        }
    }
    doubt |= join(lane, 0u, low[0], share);
    if (ROWS > 1u) {
        doubt |= join(lane, 1u, low[1], share);
    }
    if (ROWS > 2u) {
        doubt |= join(lane, 2u, low[2], share);
        doubt |= join(lane, 3u, low[3], share);
    }
    if (FOURS > 1u) {
        doubt |= join(lane, 4u, high[0], share);
        doubt |= join(lane, 5u, high[1], share);
        doubt |= join(lane, 6u, high[2], share);
        doubt |= join(lane, 7u, high[3], share);
    }
    if (doubt) {
        atomicOr(&doubts, 1u);
    }
}

// A column for each row.
fn with_value(before: mat4x4<f32>, value: vec4<f32>, power: vec4<f32>) -> mat4x4<f32> {
    var result = before;
    result[0] = fma(value, vec4(power.x), before[0]);
    if (ROWS > 1u) {
        result[1] = fma(value, vec4(power.y), before[1]);
    }
    if (ROWS > 2u) {
        result[2] = fma(value, vec4(power.z), before[2]);
        result[3] = fma(value, vec4(power.w), before[3]);
    }
    return result;
}

// The sums of one row; whether one is not finite.
fn join(lane: u32, row: u32, own: vec4<f32>, share: Share) -> bool {
    sums_by_lane[lane] = own;
    workgroupBarrier();
    var doubt = false;
    if (lane < QUADS && row < share.rows) {
        var whole = sums_by_lane[lane];
        for (var slot = 1u; slot < SLOTS; slot++) {
            whole += sums_by_lane[slot * QUADS + lane];
        }
        let bits = bitcast<vec4<u32>>(whole);
        doubt = any((bits & vec4(MAGNITUDE)) >= vec4(INFINITY));
        for (var c = 0u; c < 4u; c++) {
            sums[(share.place + row) * FEATURES + lane * 4u + c] = bits[c];
        }
    }
    workgroupBarrier();
    return doubt;
}

// Sums that are in doubt are computed again by integers, which know what is not finite.
fn settle(lane: u32, share: Share) {
    workgroupBarrier();
    if (lane == 0u) {
        verdict = atomicLoad(&doubts);
    }
    if (workgroupUniformLoad(&verdict) == 0u) {
        return;
    }
    for (var i = lane; i < share.rows * FEATURES; i += 256u) {
        let row = i / FEATURES;
        var whole = 0u;
        for (var t = 0u; t < share.count; t++) {
            let power = powers[t * FOURS + row / 4u][row % 4u];
            whole = add(whole, multiply(power, right_of(0u, share.n + t, i % FEATURES)));
        }
        sums[(share.place + row) * FEATURES + i % FEATURES] = whole;
    }
}

//# add_parts
// The parts of a query, from the first to the last, behind its sink -> its result: 0 where it sees
// nothing, NaN where a score is NaN or infinite. Two neighbouring features to a lane.
// needs: memory/grid, matmul/result, attention/powers, attention/sinks/{sinks}
// needs: arithmetic/{arithmetic}/multiply, arithmetic/{arithmetic}/add
// needs: arithmetic/{arithmetic}/divide
@group(0) @binding(sums) var<storage, read> sums: array<u32>;
@group(0) @binding(tops) var<storage, read> tops: array<u32>;
@group(0) @binding(totals) var<storage, read> totals: array<u32>;
var<workgroup> highest: array<u32, 64>;
var<workgroup> factors: array<u32, 64>;

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>,
        @builtin(local_invocation_index) lane: u32) {
    let number = group_number(group, groups);
    let head = number / sizes.rows;
    if (head >= sizes.heads) {
        return;
    }
    let m = number % sizes.rows;
    let of_heads = sizes.rows / sizes.new_tokens;
    let sink = sink_of((sizes.first_head + head) % sizes.key_heads * of_heads + m / sizes.new_tokens);
    let top = top_of(lane, head, m, sink);
    for (var first = 0u; first < FEATURES; first += 128u) {
        var whole = vec3(0u, 0u, bitcast<u32>(power_of(sink, top)));
        for (var part = 0u; part < sizes.parts; part += 64u) {
            workgroupBarrier();
            if (part + lane < sizes.parts) {
                let own = tops[place_of(head, part + lane, m)];
                factors[lane] = bitcast<u32>(power_of(own, top));
            }
            workgroupBarrier();
            if (first + 2u * lane < FEATURES) {
                for (var i = part; i < min(part + 64u, sizes.parts); i++) {
                    whole = with_part(whole, place_of(head, i, m), first + 2u * lane,
                                      factors[i - part]);
                }
            }
        }
        if (first + 2u * lane < FEATURES) {
            let row = (sizes.first_head + head) * sizes.rows + m;
            let place = row * FEATURES + first + 2u * lane;
            store_pair(place, result_of(whole.x, whole.z, top), result_of(whole.y, whole.z, top),
                       true);
        }
    }
}

fn place_of(head: u32, part: u32, m: u32) -> u32 {
    return (head * sizes.parts + part) * sizes.rows + m;
}

// The largest score of all parts, and of the sink.
fn top_of(lane: u32, head: u32, m: u32, sink: u32) -> u32 {
    var mine = rank(sink);
    for (var part = lane; part < sizes.parts; part += 64u) {
        mine = max(mine, rank(tops[place_of(head, part, m)]));
    }
    highest[lane] = mine;
    for (var others = 32u; others > 0u; others /= 2u) {
        workgroupBarrier();
        if (lane < others) {
            highest[lane] = max(highest[lane], highest[lane + others]);
        }
    }
    workgroupBarrier();
    return ranked(highest[0]);
}

// Two sums of values, and that of powers.
fn with_part(before: vec3<u32>, place: u32, column: u32, factor: u32) -> vec3<u32> {
    let at = place * FEATURES + column;
    return vec3(
        add(before.x, multiply(sums[at], factor)), add(before.y, multiply(sums[at + 1u], factor)),
        add(before.z, multiply(totals[place], factor)),
    );
}

fn result_of(values: u32, powers: u32, top: u32) -> u32 {
    if (is_nan(top) || top == INFINITY) {
        return NAN;
    }
    if (powers == 0u) {
        return values; // 0, but of values that are not finite
    }
    return divide(values, powers);
}
