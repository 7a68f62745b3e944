// SPDX-License-Identifier: BSD-3-Clause
// Elements of any dtype of one tensor or of another, as a condition says: operands 0, 1 and 2.
// needs: memory/grid, torch/items, torch/address/{address}
@group(0) @binding(condition) var<storage, read> condition: array<u32>;
@group(0) @binding(x) var<storage, read> x: array<u32>;
@group(0) @binding(y) var<storage, read> y: array<u32>;
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
        let at = address(i, 0u);
        if (extractBits(condition[at / 4u], at % 4u * 8u, 8u) != 0u) {
            let place = address(i, 1u);
            word |= moved(x[word_of(place, w)], place, i);
        } else {
            let place = address(i, 2u);
            word |= moved(y[word_of(place, w)], place, i);
        }
    }
    result[w] = word;
}
