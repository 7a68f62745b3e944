// SPDX-License-Identifier: BSD-3-Clause
// Values of codes: a chunk of CHUNK to an invocation.
// needs: memory/grid, memory/load/fours_in_{codes}, blocks/{blocks}, stored_params/step
// needs: code/{how}, memory/store/{store}

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

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>,
        @builtin(local_invocation_index) lane: u32) {
    let start = (group_number(group, groups) * 256u + lane) * CHUNK;
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
