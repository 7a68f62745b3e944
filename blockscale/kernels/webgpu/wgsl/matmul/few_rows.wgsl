// Few rows of x with a weight: its codes are read once, and decoded once for ROWS rows. Each team of
// TEAM lanes has four outputs; a lane takes chunks of their codes that are TEAM chunks apart.
// needs: grid, matmul/chunk/{chunk}, matmul/decode/{decode}, matmul/right/codes
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
