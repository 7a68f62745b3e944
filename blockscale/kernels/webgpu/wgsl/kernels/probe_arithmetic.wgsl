// SPDX-License-Identifier: BSD-3-Clause
// Every operation on each pair of numbers, for the probe of a device and for tests.
// needs: memory/grid, arithmetic/{arithmetic}/multiply, arithmetic/{arithmetic}/divide
// needs: arithmetic/{arithmetic}/add, bits/integer, arithmetic/{arithmetic}/quotient
// needs: arithmetic/{arithmetic}/reciprocal
struct Results {
    product: u32,
    quotient: u32,
    sum: u32,
    difference: u32,
    whole: u32, // a as an i32, to float
    quick_quotient: u32,
    hardware_product: u32,
    hardware_sum: u32,
    hardware_whole: u32, // of the upper 24 bits of a, which a float32 holds
}

@group(0) @binding(pairs) var<storage, read> pairs: array<vec2<u32>>;
@group(0) @binding(results) var<storage, read_write> results: array<Results>;

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>,
        @builtin(local_invocation_index) lane: u32) {
    let i = group_number(group, groups) * 64u + lane;
    if (i < sizes.count) {
        let a = pairs[i].x;
        let b = pairs[i].y;
        let ordinary = (b & MAGNITUDE) - 0x0d800000u <= 0x64000000u;
        results[i] = Results(
            multiply(a, b), divide(a, b), add(a, b), subtract(a, b), to_float(bitcast<i32>(a)),
            quotient(a, b, reciprocal(b), ordinary), product(a, b), sum(a, b),
            bitcast<u32>(f32(bitcast<i32>(a) >> 8u)));
    }
}
