// SPDX-License-Identifier: BSD-3-Clause
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
