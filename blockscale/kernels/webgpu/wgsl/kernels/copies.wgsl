// SPDX-License-Identifier: BSD-3-Clause
// Words moved, as they are or as numbers of another width.

//# words
// A copy of words, four to an invocation: the ceiling of every benchmark.
// needs: memory/grid
@group(0) @binding(source) var<storage, read> source: array<vec4<u32>>;
@group(0) @binding(result) var<storage, read_write> result: array<vec4<u32>>;

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>,
        @builtin(local_invocation_index) lane: u32) {
    let i = group_number(group, groups) * 256u + lane;
    if (i < sizes.count) {
        result[i] = source[i];
    }
}

//# bytes
// Reads words, four to an invocation, and writes a byte of each: what quantizing to 8 bits moves
// without its arithmetic, which is the floor of a software adapter's kernels.
// needs: memory/grid
@group(0) @binding(source) var<storage, read> source: array<vec4<u32>>;
@group(0) @binding(result) var<storage, read_write> result: array<u32>;

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>,
        @builtin(local_invocation_index) lane: u32) {
    let i = group_number(group, groups) * 256u + lane;
    if (i < sizes.count) {
        let bytes = (source[i] >> vec4(24u)) << vec4(0u, 8u, 16u, 24u);
        result[i] = bytes.x | bytes.y | bytes.z | bytes.w;
    }
}

//# cast
// float32 -> numbers of 16 bits, two to an invocation. RESULT_STORAGE: as in bits/storage.
// needs: memory/grid, bits/storage
@group(0) @binding(source) var<storage, read> source: array<u32>;
@group(0) @binding(result) var<storage, read_write> result: array<u32>;

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>,
        @builtin(local_invocation_index) lane: u32) {
    let i = group_number(group, groups) * 512u + lane * 2u;
    if (i >= sizes.count) {
        return;
    }
    var word = narrowed(source[i], RESULT_STORAGE);
    if (i + 1u < sizes.count) {
        word |= narrowed(source[i + 1u], RESULT_STORAGE) << 16u;
    }
    result[i / 2u] = word;
}

//# widen
// Pairs of float16 -> float32, by the device's own operation.
// needs: memory/grid
@group(0) @binding(source) var<storage, read> source: array<u32>;
@group(0) @binding(result) var<storage, read_write> result: array<vec2<f32>>;

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>,
        @builtin(local_invocation_index) lane: u32) {
    let i = group_number(group, groups) * 256u + lane;
    if (i < sizes.count) {
        result[i] = unpack2x16float(source[i]);
    }
}
