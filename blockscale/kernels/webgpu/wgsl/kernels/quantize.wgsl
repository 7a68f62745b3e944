// SPDX-License-Identifier: BSD-3-Clause
// Codes or values of numbers whose blocks have a scale: a chunk of CHUNK to an invocation.
// needs: memory/grid, memory/load/{load}, blocks/{blocks}, stored_params/step, result/{result}

struct Held {
    block: u32,
    step: Step,
}

// The step of element i, which is read where the block is another than that of the one before.
fn step_of_element(i: u32, held: ptr<function, Held>) -> Step {
    let block = block_of(sizes.first + min(i, sizes.bound - 1u));
    if (block != (*held).block) {
        *held = Held(block, step_at(block));
    }
    return (*held).step;
}

// Four elements from i on. Where each may have a step of its own, only its place of four is kept.
fn made4_at(i: u32, x: vec4<u32>, held: ptr<function, Held>) -> vec4<u32> {
    if (SHARED) {
        return made4(x, (*held).step, i);
    }
    let first = made4(vec4(x.x), step_of_element(i, held), i).x;
    let second = made4(vec4(x.y), step_of_element(i + 1u, held), i).y;
    let third = made4(vec4(x.z), step_of_element(i + 2u, held), i).z;
    return vec4(first, second, third, made4(vec4(x.w), step_of_element(i + 3u, held), i).w);
}

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>,
        @builtin(local_invocation_index) lane: u32) {
    let start = (group_number(group, groups) * 256u + lane) * CHUNK;
    if (start >= sizes.bound) {
        return;
    }
    let block = block_of(sizes.first + start);
    var held = Held(block, step_at(block));
    var written = written_from(start);
    for (var i = start; i < start + CHUNK; i += 4u) {
        written = put4(written, i, made4_at(i, load4(i / 4u), &held));
    }
}
