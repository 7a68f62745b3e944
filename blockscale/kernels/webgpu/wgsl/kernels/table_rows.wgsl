// SPDX-License-Identifier: BSD-3-Clause
// Rows of a table, two neighbouring numbers of the result to an invocation. Rows that are not bound
// are left to other launches.
// needs: memory/grid, matmul/table/{right}, matmul/result
@group(0) @binding(indices) var<storage, read> indices: array<u32>;

// The row of a number of the result, among those that are bound.
fn row_of(place: u32) -> u32 {
    return indices[(sizes.first_index + place / sizes.columns) * INDEX_WORDS] - sizes.first;
}

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>,
        @builtin(local_invocation_index) lane: u32) {
    let place = group_number(group, groups) * 512u + lane * 2u;
    if (place >= sizes.count) {
        return;
    }
    var found = vec2<u32>();
    var here = vec2<bool>();
    for (var i = 0u; i < min(sizes.count - place, 2u); i++) {
        let row = row_of(place + i);
        here[i] = row < sizes.outputs;
        if (here[i]) {
            found[i] = number_of(row, (place + i) % sizes.columns);
        }
    }
    if (RESULT_STORAGE != 0u) { // then both are of one row
        if (here.x) {
            store_pair(place, found.x, found.y, here.y);
        }
        return;
    }
    if (here.x) {
        y[place] = found.x;
    }
    if (here.y) {
        y[place + 1u] = found.y;
    }
}
