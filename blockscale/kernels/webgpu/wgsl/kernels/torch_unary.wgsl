// SPDX-License-Identifier: BSD-3-Clause
// A function of each element: one word of the result an invocation.
// needs: memory/grid, torch/first, torch/math/order, torch_functions/unary/{function}
@group(0) @binding(result) var<storage, read_write> result: array<u32>;

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>,
        @builtin(local_invocation_index) lane: u32) {
    let start = (group_number(group, groups) * 256u + lane) * LANES;
    if (start >= sizes.count) {
        return;
    }
    var word = 0u;
    for (var i = start; i < min(start + LANES, sizes.count); i++) {
        let x = first(i);
        var y = 0x7fc00000u; // NaN stays what it is
        if (!is_nan(x)) {
            y = of_one(x);
        }
        word |= narrow(y) << ((i - start) * FLOAT_BITS);
    }
    result[start / LANES] = word;
}
