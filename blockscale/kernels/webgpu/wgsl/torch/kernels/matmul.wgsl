// [batches, m, k] x [batches, k, n] -> [batches, m, n] in float32, of views of floats. A workgroup
// computes a tile of 64 x 64, an invocation 4 x 4 of it; 16 columns of a and rows of b at a time
// wait in workgroup memory.
// needs: grid, torch/lanes
@group(0) @binding(a) var<storage, read> a: array<u32>;
@group(0) @binding(b) var<storage, read> b: array<u32>;
@group(0) @binding(result) var<storage, read_write> result: array<f32>;

var<workgroup> of_a: array<f32, 1024>; // [16, 64]: k first
var<workgroup> of_b: array<f32, 1024>; // [16, 64]

fn a_at(batch: u32, i: u32, j: u32) -> f32 {
    if (i >= sizes.m || j >= sizes.k) {
        return 0.0;
    }
    let at = sizes.a_start + batch * sizes.a_batch + i * sizes.a_row + j * sizes.a_column;
    return bitcast<f32>(widen(extractBits(a[at / LANES], at % LANES * FLOAT_BITS, FLOAT_BITS)));
}

fn b_at(batch: u32, i: u32, j: u32) -> f32 {
    if (i >= sizes.k || j >= sizes.n) {
        return 0.0;
    }
    let at = sizes.b_start + batch * sizes.b_batch + i * sizes.b_row + j * sizes.b_column;
    return bitcast<f32>(widen(extractBits(b[at / LANES], at % LANES * FLOAT_BITS, FLOAT_BITS)));
}

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>,
        @builtin(local_invocation_index) lane: u32) {
    let across = (sizes.n + 63u) / 64u;
    let down = (sizes.m + 63u) / 64u;
    let tile = group_number(group, groups);
    let batch = tile / (across * down);
    if (batch >= sizes.batches) {
        return;
    }
    let top = tile / across % down * 64u;
    let left = tile % across * 64u;
    let row = lane / 16u * 4u;
    let column = lane % 16u * 4u;
    var sums: array<vec4<f32>, 4>;
    for (var start = 0u; start < sizes.k; start += 16u) {
        for (var i = lane; i < 1024u; i += 256u) { // neighbours load what lies side by side
            if (A_IN_ROWS) {
                of_a[i % 16u * 64u + i / 16u] = a_at(batch, top + i / 16u, start + i % 16u);
            } else {
                of_a[i] = a_at(batch, top + i % 64u, start + i / 64u);
            }
            if (B_IN_ROWS) {
                of_b[i] = b_at(batch, start + i / 64u, left + i % 64u);
            } else {
                of_b[i % 16u * 64u + i / 16u] = b_at(batch, start + i % 16u, left + i / 16u);
            }
        }
        workgroupBarrier();
        for (var j = 0u; j < 16u; j++) {
            let at = j * 64u + column;
            let right = vec4(of_b[at], of_b[at + 1u], of_b[at + 2u], of_b[at + 3u]);
            for (var i = 0u; i < 4u; i++) {
                sums[i] += of_a[j * 64u + row + i] * right;
            }
        }
        workgroupBarrier();
    }
    for (var i = 0u; i < 4u; i++) {
        for (var j = 0u; j < 4u; j++) {
            if (top + row + i < sizes.m && left + column + j < sizes.n) {
                let place = (batch * sizes.m + top + row + i) * sizes.n + left + column + j;
                result[place] = sums[i][j];
            }
        }
    }
}
