// SPDX-License-Identifier: BSD-3-Clause
// Many rows: tiles of both factors as floats in the workgroup's memory, from which each lane takes
// SIDE x SIDE blocks of 4 x 4 results. Results that are in doubt are computed again, exactly.
// needs: memory/grid, matmul/left, matmul/right/{right}, matmul/exact, matmul/trust
// needs: matmul/bias/{bias}
// needs: matmul/result
const DOWN: u32 = TILE_ROWS / (4u * SIDE); // lanes
const ACROSS: u32 = 256u / DOWN;
const TILE_OUTPUTS: u32 = ACROSS * 4u * SIDE;
const DEPTH: u32 = 16u; // columns of both factors that are at hand
const LEFT_STRIDE: u32 = TILE_ROWS / 4u + 1u; // so that lanes that write meet in few banks
const RIGHT_STRIDE: u32 = TILE_OUTPUTS / 4u + 1u;
var<workgroup> left_tile: array<vec4<f32>, DEPTH * LEFT_STRIDE>; // [k][four rows]
var<workgroup> right_tile: array<vec4<f32>, DEPTH * RIGHT_STRIDE>; // [k][four outputs]
var<workgroup> doubts: atomic<u32>;
var<workgroup> verdict: u32;

// Four neighbours along k of a row of the left factor; zeros behind its end.
fn left_quad(batch: u32, m: u32, quad: u32) -> Quad {
    var bits = vec4<u32>();
    for (var c = 0u; c < 4u; c++) {
        if (quad * 4u + c < sizes.inner) {
            bits[c] = left_of(batch, m, quad * 4u + c);
        }
    }
    let doubt = any((bits & vec4(0x7fffffffu)) > vec4(LEFT_LIMIT));
    return Quad(bitcast<vec4<f32>>(bits), doubt);
}

fn fill_left(i: u32, batch: u32, first: u32, quad: u32) -> bool {
    var doubt = false;
    for (var task = i; task < DEPTH / 4u * (TILE_ROWS / 4u); task += 256u) {
        let q = task % (DEPTH / 4u);
        let four = task / (DEPTH / 4u);
        let m = min(vec4(first + four * 4u) + vec4(0u, 1u, 2u, 3u), vec4(sizes.rows - 1u));
        let r0 = left_quad(batch, m.x, quad + q);
        let r1 = left_quad(batch, m.y, quad + q);
        let r2 = left_quad(batch, m.z, quad + q);
        let r3 = left_quad(batch, m.w, quad + q);
        doubt |= r0.doubt | r1.doubt | r2.doubt | r3.doubt;
        let turned = transpose(mat4x4(r0.values, r1.values, r2.values, r3.values));
        let place = q * 4u * LEFT_STRIDE + four;
        left_tile[place] = turned[0];
        left_tile[place + LEFT_STRIDE] = turned[1];
        left_tile[place + 2u * LEFT_STRIDE] = turned[2];
        left_tile[place + 3u * LEFT_STRIDE] = turned[3];
    }
    return doubt;
}

fn fill_right(i: u32, batch: u32, first: u32, quad: u32) -> bool {
    var doubt = false;
    for (var task = i; task < DEPTH / 4u * (TILE_OUTPUTS / 4u); task += 256u) {
        var q = task % (DEPTH / 4u);
        var four = task / (DEPTH / 4u);
        if (OUTPUTS_ADJOIN) {
            q = task / (TILE_OUTPUTS / 4u);
            four = task % (TILE_OUTPUTS / 4u);
        }
        let n = min(vec4(first + four * 4u) + vec4(0u, 1u, 2u, 3u), vec4(sizes.outputs - 1u));
        var r0 = Quad(vec4<f32>(), false);
        var r1 = r0;
        var r2 = r0;
        var r3 = r0;
        if ((quad + q) * 4u < sizes.inner) {
            r0 = right_quad(batch, n.x, quad + q);
            r1 = right_quad(batch, n.y, quad + q);
            r2 = right_quad(batch, n.z, quad + q);
            r3 = right_quad(batch, n.w, quad + q);
        }
        doubt |= r0.doubt | r1.doubt | r2.doubt | r3.doubt;
        let turned = transpose(mat4x4(r0.values, r1.values, r2.values, r3.values));
        let place = q * 4u * RIGHT_STRIDE + four;
        right_tile[place] = turned[0];
        right_tile[place + RIGHT_STRIDE] = turned[1];
        right_tile[place + 2u * RIGHT_STRIDE] = turned[2];
        right_tile[place + 3u * RIGHT_STRIDE] = turned[3];
    }
    return doubt;
}

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>,
        @builtin(local_invocation_index) i: u32) {
    let number = group_number(group, groups);
    let batch = number / sizes.tiles;
    if (batch >= sizes.batches) {
        return;
    }
    let first_row = number % sizes.tiles / sizes.column_groups * TILE_ROWS;
    let first_output = number % sizes.tiles % sizes.column_groups * TILE_OUTPUTS;
    let down = i / ACROSS;
    let across = i % ACROSS;
    prepare_right(i);
    if (i == 0u) {
        atomicStore(&doubts, 0u); // wgpu does not do it, whatever WGSL says
    }
    var s00 = mat4x4<f32>(); // SIDE x SIDE blocks of four rows with four outputs, a column a row
    var s01 = mat4x4<f32>();
    var s10 = mat4x4<f32>();
    var s11 = mat4x4<f32>();
    var doubt = false;
    for (var quad = 0u; quad * 4u < sizes.inner; quad += DEPTH / 4u) {
        workgroupBarrier();
        doubt |= fill_left(i, batch, first_row, quad);
        doubt |= fill_right(i, batch, first_output, quad);
        workgroupBarrier();
        for (var k = 0u; k < DEPTH; k++) {
            let a0 = left_tile[k * LEFT_STRIDE + down];
            let b0 = right_tile[k * RIGHT_STRIDE + across];
            s00 = with_product(a0, b0, s00);
            if (SIDE == 2u) {
                let a1 = left_tile[k * LEFT_STRIDE + down + DOWN];
                let b1 = right_tile[k * RIGHT_STRIDE + across + ACROSS];
                s01 = with_product(a0, b1, s01);
                s10 = with_product(a1, b0, s10);
                s11 = with_product(a1, b1, s11);
            }
        }
    }
    if (doubt) {
        atomicStore(&doubts, 1u);
    }
    workgroupBarrier();
    if (i == 0u) {
        verdict = atomicLoad(&doubts);
    }
    let all = workgroupUniformLoad(&verdict) != 0u;
    let m = first_row + down * 4u;
    let n = first_output + across * 4u;
    var doubted = write_block(batch, m, n, s00);
    if (SIDE == 2u) {
        doubted |= write_block(batch, m, n + 4u * ACROSS, s01) << 8u;
        doubted |= write_block(batch, m + 4u * DOWN, n, s10) << 16u;
        doubted |= write_block(batch, m + 4u * DOWN, n + 4u * ACROSS, s11) << 24u;
    }
    settle(batch, m, n, select(doubted, 0xffffffffu, all));
}

fn with_product(a: vec4<f32>, b: vec4<f32>, sum: mat4x4<f32>) -> mat4x4<f32> {
    return mat4x4(
        fma(vec4(a.x), b, sum[0]), fma(vec4(a.y), b, sum[1]),
        fma(vec4(a.z), b, sum[2]), fma(vec4(a.w), b, sum[3]),
    );
}

// Write a block; a bit for each pair of results that is in doubt.
fn write_block(batch: u32, m: u32, n: u32, sums: mat4x4<f32>) -> u32 {
    return write_row(batch, m, n, bitcast<vec4<u32>>(sums[0]))
        | write_row(batch, m + 1u, n, bitcast<vec4<u32>>(sums[1])) << 2u
        | write_row(batch, m + 2u, n, bitcast<vec4<u32>>(sums[2])) << 4u
        | write_row(batch, m + 3u, n, bitcast<vec4<u32>>(sums[3])) << 6u;
}

fn write_row(batch: u32, m: u32, n: u32, found: vec4<u32>) -> u32 {
    write_pair(batch, m, n, found.x, found.y);
    write_pair(batch, m, n + 2u, found.z, found.w);
    return u32(!trusted(found.x) || !trusted(found.y))
        | u32(!trusted(found.z) || !trusted(found.w)) << 1u;
}

// The pairs of results that are in doubt, exactly.
fn settle(batch: u32, first_row: u32, first_output: u32, doubted: u32) {
    for (var pair = 0u; pair < 8u * SIDE * SIDE; pair++) {
        let m = first_row + pair / 16u * 4u * DOWN + pair % 8u / 2u;
        let n = first_output + pair / 8u % 2u * 4u * ACROSS + pair % 2u * 2u;
        if ((doubted >> pair & 1u) == 0u || m >= sizes.rows || n >= sizes.outputs) {
            continue;
        }
        var found = vec2<u32>();
        for (var c = 0u; c < min(sizes.outputs - n, 2u); c++) {
            found[c] = exact_sum(batch, m, n + c, 0u, 1u);
        }
        write_pair(batch, m, n, found.x, found.y);
    }
}

fn write_pair(batch: u32, m: u32, n: u32, first: u32, second: u32) {
    if (m < sizes.rows && n < sizes.outputs) {
        let both = n + 1u < sizes.outputs;
        let place = (batch * sizes.rows + m) * sizes.columns + sizes.first + n;
        let other = with_bias(sizes.first + n + u32(both), second);
        store_pair(place, with_bias(sizes.first + n, first), other, both);
    }
}
