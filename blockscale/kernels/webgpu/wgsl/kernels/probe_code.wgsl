// SPDX-License-Identifier: BSD-3-Clause
// Codes of numbers and values of codes, four of each that have a scale, for the probe of a device
// and for tests; and the same one by one.
// needs: memory/grid, step/{step}, code/{how}
struct Question {
    scale: u32,
    zero: i32,
    outer: u32,
    offset: u32,
    x: vec4<u32>,
    words: vec4<u32>,
    codes: vec4<u32>,
}

struct Answer {
    codes: vec4<u32>,
    values: vec4<u32>,
    code: u32, // of the first number
    value: u32, // of the first code
    unused: vec2<u32>,
}

@group(0) @binding(questions) var<storage, read> questions: array<Question>;
@group(0) @binding(answers) var<storage, read_write> answers: array<Answer>;

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>,
        @builtin(local_invocation_index) lane: u32) {
    let i = group_number(group, groups) * 64u + lane;
    if (i < sizes.count) {
        let asked = questions[i];
        let s = step_of(asked.scale, asked.zero, asked.outer, asked.offset);
        answers[i] = Answer(four_codes(asked.x, s, asked.words), four_values(asked.codes, s),
                            code_of(asked.x.x, s, asked.words.x), value_of(asked.codes.x, s),
                            vec2(0u));
    }
}
