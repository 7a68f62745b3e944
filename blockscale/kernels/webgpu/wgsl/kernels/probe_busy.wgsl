// SPDX-License-Identifier: BSD-3-Clause
// Work that takes a time of its own, for benchmarks: a GPU that idles between calls lowers its clock.
@group(0) @binding(result) var<storage, read_write> result: array<u32>;

@compute @workgroup_size(256)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    var x = id.x;
    for (var i = 0u; i < sizes.turns; i++) {
        x = x * 1664525u + 1013904223u;
    }
    if (x == 0u) { // seldom, so that it is computed, and nearly nothing is written
        result[0] = id.x;
    }
}
