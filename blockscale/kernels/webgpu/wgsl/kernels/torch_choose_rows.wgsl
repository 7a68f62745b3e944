// SPDX-License-Identifier: BSD-3-Clause
// Rows of a table of any dtype, chosen by indices of INDEX_WORDS words: embedding, index_select.
// needs: memory/grid, torch/items
@group(0) @binding(table) var<storage, read> table: array<u32>;
@group(0) @binding(indices) var<storage, read> indices: array<u32>;
@group(0) @binding(result) var<storage, read_write> result: array<u32>;

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>,
        @builtin(local_invocation_index) lane: u32) {
    let w = group_number(group, groups) * 256u + lane;
    let start = w / WORDS * LANES;
    if (start >= sizes.count) {
        return;
    }
    var word = 0u;
    for (var i = start; i < min(start + LANES, sizes.count); i++) {
        let at = indices[i / sizes.row * INDEX_WORDS] * sizes.row + i % sizes.row;
        word |= moved(table[word_of(at, w)], at, i);
    }
    result[w] = word;
}
