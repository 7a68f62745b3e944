// A code of each number and a value of each code, for the probe of a device and for tests.
// needs: grid, step/{step}, code/{how}
struct Question {
    x: u32,
    scale: u32,
    zero: i32,
    outer: u32,
    offset: u32,
    word: u32,
    code: u32,
}

struct Answer {
    code: u32,
    value: u32,
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
        answers[i] = Answer(code_of(asked.x, s, asked.word), value_of(asked.code, s));
    }
}
