// SPDX-License-Identifier: BSD-3-Clause
// Few rows of x with a weight: its codes are read once, and decoded once for ROWS rows. Each team of
// TEAM lanes has four outputs; a lane takes chunks of their codes that are TEAM chunks apart.
// needs: memory/grid, kernels/matmul_few_rows/chunk/{chunk}, matmul/decode/{decode}
// needs: matmul/right/codes
// needs: matmul/exact, matmul/trust, matmul/bias/{bias}, matmul/result
const TEAMS: u32 = 256u / TEAM;
const OUTPUTS: u32 = 4u * TEAMS; // of a workgroup
const STAGE: u32 = TILES * TEAM * CHUNK; // quads of a row of x that are at hand
const ACROSS: u32 = TEAM + 1u; // from quad to quad of a lane: so that lanes meet in no bank
const ROW_STRIDE: u32 = TILES * CHUNK * ACROSS;
var<workgroup> staged: array<vec4<f32>, max(ROWS * ROW_STRIDE, ROWS * 256u)>;
var<workgroup> results: array<u32, ROWS * OUTPUTS>;
var<workgroup> parts_of_sum: array<u32, 256>;
var<workgroup> doubts: atomic<u32>; // 1: of an input, 2: of a result
var<workgroup> verdict: u32;

// Bring quads of ROWS rows of x from `first` on; whether one is too large for the quick way.
fn stage(lane: u32, m: u32, first: u32) -> bool {
    var large = 0u;
    for (var i = lane; i < ROWS * STAGE; i += 256u) {
        let row = i / STAGE;
        let quad = i % STAGE;
        var bits = vec4<u32>();
        for (var c = 0u; c < 4u; c++) {
            let k = (first + quad) * 4u + c;
            if (k < sizes.inner && m + row < sizes.rows) {
                bits[c] = left_of(0u, m + row, k);
            }
        }
        let most = max(max(bits.x << 1u, bits.y << 1u), max(bits.z << 1u, bits.w << 1u));
        large = max(large, most >> 1u);
        let tile = row * TILES + quad / (TEAM * CHUNK);
        let place = (tile * CHUNK + quad % CHUNK) * ACROSS + quad / CHUNK % TEAM;
        staged[place] = bitcast<vec4<f32>>(bits);
    }
    return large > LEFT_LIMIT;
}

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>,
        @builtin(local_invocation_index) i: u32) {
    let number = group_number(group, groups);
    let m = number / sizes.column_groups * ROWS;
    let first_output = number % sizes.column_groups * OUTPUTS;
    if (m >= sizes.rows) {
        return;
    }
    prepare_decode(i);
    if (i == 0u) {
        atomicStore(&doubts, 0u); // wgpu does not do it, whatever WGSL says
    }
    let lane = i % TEAM;
    let last = sizes.outputs - 1u;
    let n = min(vec4(first_output + i / TEAM * 4u) + vec4(0u, 1u, 2u, 3u), vec4(last));
    let quads = (sizes.inner + 3u) / 4u;
    var sums = Sums();
    var doubt = false;
    for (var start = 0u; start < quads; start += STAGE) {
        workgroupBarrier();
        doubt |= stage(i, m, start);
        workgroupBarrier();
        for (var tile = 0u; tile < TILES; tile++) {
            let first = start + (tile * TEAM + lane) * CHUNK;
            if (first < quads) {
                doubt |= take_chunk(n, first, tile * CHUNK * ACROSS + lane, &sums);
            }
        }
    }
    reduce(i, m, first_output, sums, doubt);
    settle(i, m, first_output);
    write(i, m, first_output);
}

// The sums of a team's lanes become results.
fn reduce(i: u32, m: u32, first_output: u32, sums: Sums, doubt: bool) {
    let lane = i % TEAM;
    workgroupBarrier();
    staged[i] = sums.r0;
    if (ROWS > 1u) {
        staged[256u + i] = sums.r1;
    }
    if (ROWS > 2u) {
        staged[512u + i] = sums.r2;
        staged[768u + i] = sums.r3;
    }
    for (var others = TEAM / 2u; others > 0u; others /= 2u) {
        workgroupBarrier();
        if (lane < others) {
            for (var r = 0u; r < ROWS; r++) {
                staged[r * 256u + i] += staged[r * 256u + i + others];
            }
        }
    }
    workgroupBarrier();
    var found = u32(doubt);
    for (var place = i; place < ROWS * OUTPUTS; place += 256u) {
        let output = place % OUTPUTS;
        let sum = staged[place / OUTPUTS * 256u + output / 4u * TEAM][output % 4u];
        results[place] = bitcast<u32>(sum);
        let asked = m + place / OUTPUTS < sizes.rows && first_output + output < sizes.outputs;
        found |= select(0u, 2u, asked && !trusted(bitcast<u32>(sum)));
    }
    if (found != 0u) {
        atomicOr(&doubts, found);
    }
}

// Results that are in doubt are computed again, exactly, by all lanes.
fn settle(i: u32, m: u32, first_output: u32) {
    workgroupBarrier();
    if (i == 0u) {
        verdict = atomicLoad(&doubts);
    }
    let doubted = workgroupUniformLoad(&verdict);
    if (doubted == 0u) {
        return;
    }
    for (var place = 0u; place < ROWS * OUTPUTS; place++) {
        let row = m + place / OUTPUTS;
        let n = first_output + place % OUTPUTS;
        let known = (doubted & 1u) == 0u && trusted(workgroupUniformLoad(&results[place]));
        if (row >= sizes.rows || n >= sizes.outputs || known) {
            continue;
        }
        parts_of_sum[i] = exact_sum(0u, row, n, i, 256u);
        for (var others = 128u; others > 0u; others /= 2u) {
            workgroupBarrier();
            if (i < others) {
                parts_of_sum[i] = add(parts_of_sum[i], parts_of_sum[i + others]);
            }
        }
        if (i == 0u) {
            results[place] = parts_of_sum[0];
        }
        workgroupBarrier();
    }
}

fn write(i: u32, m: u32, first_output: u32) {
    for (var place = i * 2u; place < ROWS * OUTPUTS; place += 512u) {
        let row = m + place / OUTPUTS;
        let n = first_output + place % OUTPUTS;
        if (row < sizes.rows && n < sizes.outputs) {
            let both = n + 1u < sizes.outputs;
            let bias_place = sizes.first + n;
            let first = with_bias(bias_place, results[place]);
            let second = with_bias(bias_place + u32(both), results[place + 1u]);
            store_pair(row * sizes.columns + sizes.first + n, first, second, both);
        }
    }
}

//# chunk/any
// Rows that begin anywhere, codes of any width up to eight bits: four of each of four rows at once.
// needs: kernels/matmul_few_rows/chunk/sums, matmul/decode/{decode}, matmul/codes
const CHUNK: u32 = 8u; // quads

fn take_chunk(n: vec4<u32>, first: u32, place: u32, sums: ptr<function, Sums>) -> bool {
    var doubt = false;
    for (var piece = 0u; piece < CHUNK; piece += PIECE) {
        let blocks = blocks_of(n, first + piece);
        doubt |= blocks.doubt;
        var part = Sums();
        for (var q = piece; q < piece + PIECE; q++) {
            let c0 = codes_of(n.x, first + q);
            let c1 = codes_of(n.y, first + q);
            let c2 = codes_of(n.z, first + q);
            let c3 = codes_of(n.w, first + q);
            doubt |= any_reserved(four_bytes(c0)) | any_reserved(four_bytes(c1)) | any_reserved(four_bytes(c2))
                | any_reserved(four_bytes(c3));
            let values = mat4x4(
                values_of(c0, blocks.zeros.x), values_of(c1, blocks.zeros.y),
                values_of(c2, blocks.zeros.z), values_of(c3, blocks.zeros.w),
            );
            part = add_quad(place + q * ACROSS, in_blocks(blocks, values), part);
        }
        finish(part, blocks, sums);
    }
    return doubt;
}

//# chunk/sums
// Sums of up to four rows of x with four outputs each, and what is added to them at a time.
// needs: matmul/block
struct Sums { r0: vec4<f32>, r1: vec4<f32>, r2: vec4<f32>, r3: vec4<f32> }

// A block of each of four outputs.
struct Blocks { steps: vec4<f32>, zeros: vec4<f32>, offsets: vec4<f32>, doubt: bool }

fn blocks_of(n: vec4<u32>, quad: u32) -> Blocks {
    let k = min(quad * 4u, sizes.inner - 1u);
    let b0 = prepared_block(block_of(n.x, k));
    let b1 = prepared_block(block_of(n.y, k));
    let b2 = prepared_block(block_of(n.z, k));
    let b3 = prepared_block(block_of(n.w, k));
    return Blocks(
        vec4(b0.step, b1.step, b2.step, b3.step), vec4(b0.zero, b1.zero, b2.zero, b3.zero),
        vec4(b0.offset, b1.offset, b2.offset, b3.offset),
        b0.doubt | b1.doubt | b2.doubt | b3.doubt,
    );
}

// What x is multiplied by, a column for each output. Steps follow once a block (numerics.md, 7),
// but where an offset has to be added to each weight.
fn in_blocks(blocks: Blocks, values: mat4x4<f32>) -> mat4x4<f32> {
    if (!HAS_OFFSET) {
        return values;
    }
    return mat4x4(
        shifted_weights(values[0], blocks.steps.x, blocks.offsets.x),
        shifted_weights(values[1], blocks.steps.y, blocks.offsets.y),
        shifted_weights(values[2], blocks.steps.z, blocks.offsets.z),
        shifted_weights(values[3], blocks.steps.w, blocks.offsets.w),
    );
}

fn finish(part: Sums, blocks: Blocks, sums: ptr<function, Sums>) {
    let factors = select(blocks.steps, vec4(1.0), HAS_OFFSET);
    (*sums).r0 = fma(part.r0, factors, (*sums).r0);
    if (ROWS > 1u) {
        (*sums).r1 = fma(part.r1, factors, (*sums).r1);
    }
    if (ROWS > 2u) {
        (*sums).r2 = fma(part.r2, factors, (*sums).r2);
        (*sums).r3 = fma(part.r3, factors, (*sums).r3);
    }
}

// Four columns of x, staged at a place for the first row, times those of the weight.
fn add_quad(place: u32, w: mat4x4<f32>, part: Sums) -> Sums {
    var sums = part;
    sums.r0 = dots_of(staged[place], w, part.r0);
    if (ROWS > 1u) {
        sums.r1 = dots_of(staged[place + ROW_STRIDE], w, part.r1);
    }
    if (ROWS > 2u) {
        sums.r2 = dots_of(staged[place + 2u * ROW_STRIDE], w, part.r2);
        sums.r3 = dots_of(staged[place + 3u * ROW_STRIDE], w, part.r3);
    }
    return sums;
}

fn dots_of(x: vec4<f32>, w: mat4x4<f32>, sum: vec4<f32>) -> vec4<f32> {
    return vec4(dot_of(x, w[0], sum.x), dot_of(x, w[1], sum.y), dot_of(x, w[2], sum.z),
                dot_of(x, w[3], sum.w));
}

fn dot_of(x: vec4<f32>, w: vec4<f32>, sum: f32) -> f32 {
    return fma(x.x, w.x, fma(x.y, w.y, fma(x.z, w.z, fma(x.w, w.w, sum))));
}

//# chunk/words
// Sixteen bytes of four rows of codes at once: rows begin at multiples of them, and codes have four
// or eight bits. Written out: loops with arrays in them may end up in slow memory.
// needs: kernels/matmul_few_rows/chunk/sums, matmul/decode/{decode}
@group(0) @binding(words) var<storage, read> words: array<vec4<u32>>;
const CHUNK: u32 = 32u / BITS; // quads
const UNIT: u32 = 8u / BITS; // quads of a word
const PIECE_WORDS: u32 = PIECE / UNIT;

fn take_chunk(n: vec4<u32>, first: u32, place: u32, sums: ptr<function, Sums>) -> bool {
    let row = sizes.row_bytes / 16u;
    let at = first / CHUNK;
    let c0 = words[n.x * row + at];
    let c1 = words[n.y * row + at];
    let c2 = words[n.z * row + at];
    let c3 = words[n.w * row + at];
    var blocks = blocks_of(n, first);
    var doubt = blocks.doubt;
    var part = take_word(vec4(c0.x, c1.x, c2.x, c3.x), blocks, place, Sums(), &doubt);
    if (PIECE_WORDS == 1u) {
        finish(part, blocks, sums);
        part = Sums();
        blocks = blocks_of(n, first + UNIT);
        doubt |= blocks.doubt;
    }
    part = take_word(vec4(c0.y, c1.y, c2.y, c3.y), blocks, place + UNIT * ACROSS, part, &doubt);
    if (PIECE_WORDS <= 2u) {
        finish(part, blocks, sums);
        part = Sums();
        blocks = blocks_of(n, first + 2u * UNIT);
        doubt |= blocks.doubt;
    }
    part = take_word(vec4(c0.z, c1.z, c2.z, c3.z), blocks, place + 2u * UNIT * ACROSS, part, &doubt);
    if (PIECE_WORDS == 1u) {
        finish(part, blocks, sums);
        part = Sums();
        blocks = blocks_of(n, first + 3u * UNIT);
        doubt |= blocks.doubt;
    }
    part = take_word(vec4(c0.w, c1.w, c2.w, c3.w), blocks, place + 3u * UNIT * ACROSS, part, &doubt);
    finish(part, blocks, sums);
    return doubt;
}

fn take_word(word: vec4<u32>, blocks: Blocks, place: u32, part: Sums, doubt: ptr<function, bool>)
        -> Sums {
    let v0 = unit_of(word.x, blocks.zeros.x);
    let v1 = unit_of(word.y, blocks.zeros.y);
    let v2 = unit_of(word.z, blocks.zeros.z);
    let v3 = unit_of(word.w, blocks.zeros.w);
    *doubt |= any_reserved(word.x) | any_reserved(word.y) | any_reserved(word.z)
        | any_reserved(word.w);
    let low = add_quad(place, in_blocks(blocks, mat4x4(v0.low, v1.low, v2.low, v3.low)), part);
    if (UNIT == 1u) {
        return low;
    }
    let high = mat4x4(v0.high, v1.high, v2.high, v3.high);
    return add_quad(place + ACROSS, in_blocks(blocks, high), low);
}
