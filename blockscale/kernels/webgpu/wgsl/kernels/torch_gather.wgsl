// SPDX-License-Identifier: BSD-3-Clause
// Elements of any dtype, put together in row-major order: a view becomes a tensor of its own.
// needs: memory/grid, torch/items, torch/address/strided
@group(0) @binding(x) var<storage, read> x: array<u32>;
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
        word |= moved(x[word_of(at, w)], at, i);
    }
    result[w] = word;
}
