// SPDX-License-Identifier: BSD-3-Clause
// What a device computes otherwise than it must, asked of it; and, for tests and benchmarks, single
// functions of the roles.

//# arithmetic
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

//# fast_path
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

//# choose
// What is chosen for each range, for the probe of a device and for tests.
// needs: memory/grid, choose/{rule}
struct Given {
    low: u32,
    high: u32,
    poisoned: u32,
    largest: u32, // numerator of the blocks that share an outer scale
}

struct Found {
    numerator: u32,
    outer: u32,
    scale: u32,
    zero: i32,
    offset: u32,
}

@group(0) @binding(given) var<storage, read> given: array<Given>;
@group(0) @binding(found) var<storage, read_write> found: array<Found>;

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>,
        @builtin(local_invocation_index) lane: u32) {
    let i = group_number(group, groups) * 64u + lane;
    if (i < sizes.count) {
        let r = Range(given[i].low, given[i].high, given[i].poisoned != 0u);
        let outer = outer_of(given[i].largest);
        let made = choose(r, outer);
        found[i] = Found(numerator(r), outer, made.scale, made.zero, made.offset);
    }
}

//# code
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

//# means
// Means of sums, and floats of 16 bits, for tests.
// needs: memory/grid, choose/mean, memory/float/{float}
struct Given {
    low: u32,
    high: u32,
    count: u32,
    power: u32,
    x: u32,
    half: u32,
}

struct Found {
    mean: u32,
    narrow: u32,
    wide: u32,
}

@group(0) @binding(given) var<storage, read> given: array<Given>;
@group(0) @binding(found) var<storage, read_write> found: array<Found>;

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>,
        @builtin(local_invocation_index) lane: u32) {
    let i = group_number(group, groups) * 64u + lane;
    if (i < sizes.count) {
        let each = given[i];
        found[i] = Found(mean_of(vec2<u32>(each.low, each.high), each.count, each.power),
                         narrow(each.x), widen(each.half));
    }
}

//# random
// The random number of each index, for the probe of a device and for tests.
// needs: memory/grid, rounding/random/{random}
struct Drawn {
    four: vec4<u32>,
    one: vec4<u32>, // four times
}

@group(0) @binding(asked) var<storage, read> asked: array<vec4<u32>>; // index, seed
@group(0) @binding(drawn) var<storage, read_write> drawn: array<Drawn>;

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>,
        @builtin(local_invocation_index) lane: u32) {
    let i = group_number(group, groups) * 64u + lane;
    if (i < sizes.count) {
        let four = draw_four(asked[i].xy, asked[i].zw);
        drawn[i] = Drawn(four, vec4(draw(asked[i].xy, asked[i].zw)));
    }
}

//# busy
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
