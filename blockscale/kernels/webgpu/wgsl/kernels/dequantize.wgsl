// Values of codes: PARTS chunks of CHUNK to an invocation, 256 chunks apart.
// needs: grid, load/fours_in_{codes}, blocks/{blocks}, given/step, code/{how}, store/{store}

struct Held {
    block: u32,
    step: Step,
}

fn value_at(i: u32, code: u32, held: ptr<function, Held>) -> u32 {
    let block = block_of(sizes.first + min(i, sizes.bound - 1u));
    if (block != (*held).block) {
        *held = Held(block, step_at(block));
    }
    return value_of(code, (*held).step);
}

fn chunk_from(start: u32) {
    if (start >= sizes.bound) {
        return;
    }
    let block = block_of(sizes.first + start);
    var held = Held(block, step_at(block));
    for (var i = start; i < min(start + CHUNK, sizes.bound); i += 4u) {
        let codes = codes4(i);
        if (SHARED) {
            store4(i / 4u, four_values(codes, held.step));
        } else {
            store4(i / 4u, vec4(value_at(i, codes.x, &held), value_at(i + 1u, codes.y, &held),
                                value_at(i + 2u, codes.z, &held),
                                value_at(i + 3u, codes.w, &held)));
        }
    }
}

// All that is read is under way before the first value is computed.
fn chunks_at_once(start: u32) {
    var fours: array<vec4<u32>, FOURS>;
    var steps: array<Step, PARTS>;
    for (var four = 0u; four < FOURS; four++) {
        fours[four] = codes4(start + place_of(four));
    }
    for (var part = 0u; part < PARTS; part++) {
        steps[part] = step_at(block_of(sizes.first + start + part * 256u * CHUNK));
    }
    for (var four = 0u; four < FOURS; four++) {
        let i = start + place_of(four);
        store4(i / 4u, four_values(fours[four], steps[four / (CHUNK / 4u)]));
    }
}

// Where an invocation's fours lie, from its first one.
fn place_of(four: u32) -> u32 {
    return four / (CHUNK / 4u) * 256u * CHUNK + four % (CHUNK / 4u) * 4u;
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
