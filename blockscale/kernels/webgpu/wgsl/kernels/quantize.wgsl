// Codes or values of numbers whose blocks have a scale: PARTS chunks of
// CHUNK to an invocation, 256 chunks apart.
// needs: grid, load/{load}, blocks/{blocks}, given/step, result/{result}

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

fn chunk_from(start: u32) {
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

// All that is read is under way before the first code is computed.
fn chunks_at_once(start: u32) {
    const each = CHUNK / 4u; // fours of a chunk
    var fours: array<vec4<u32>, FOURS>;
    var steps: array<Step, PARTS>;
    for (var four = 0u; four < FOURS; four++) {
        fours[four] = load4((start + four / each * 256u * CHUNK) / 4u + four % each);
    }
    for (var part = 0u; part < PARTS; part++) {
        steps[part] = step_at(block_of(sizes.first + start + part * 256u * CHUNK));
    }
    for (var part = 0u; part < PARTS; part++) {
        let first = start + part * 256u * CHUNK;
        var written = written_from(first);
        for (var j = 0u; j < each; j++) {
            let i = first + 4u * j;
            written = put4(written, i, made4(fours[part * each + j], steps[part], i));
        }
    }
}

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>,
        @builtin(local_invocation_index) lane: u32) {
    let start = (group_number(group, groups) * PARTS * 256u + lane) * CHUNK;
    if (SHARED && start + ((PARTS - 1u) * 256u + 1u) * CHUNK <= sizes.bound) {
        chunks_at_once(start);
        return;
    }
    for (var part = 0u; part < PARTS; part++) {
        chunk_from(start + part * 256u * CHUNK);
    }
}
