// SPDX-License-Identifier: BSD-3-Clause
// Values of numbers after a round trip with a step of one, for the probe of a device and for tests.
// What rounds at random draws 0, which rounds up.
// needs: memory/grid, step/step, fast_path_code/scaled/{scaled}, fast_path_code/{family}
@group(0) @binding(numbers) var<storage, read> numbers: array<vec4<u32>>;
@group(0) @binding(steps) var<storage, read> steps: array<u32>;
@group(0) @binding(values) var<storage, read_write> values: array<vec4<u32>>;

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>,
        @builtin(local_invocation_index) lane: u32) {
    let i = group_number(group, groups) * 64u + lane;
    if (i < sizes.count) {
        let s = Step(steps[i], 0u, 0, 0u, true);
        values[i] = values_of_coded(coded(scaled4(numbers[i], s), vec4(0u), s), s);
    }
}
