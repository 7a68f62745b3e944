// Codes or values of numbers whose blocks have a scale: a chunk of CHUNK to an invocation.
// needs: grid, load/{load}, blocks/{blocks}, given/step, result/{result}

struct Held {
    block: u32,
    step: Step,
}

fn made_at(i: u32, x: u32, held: ptr<function, Held>) -> u32 {
    if (!SHARED) {
        let block = block_of(sizes.first + min(i, sizes.bound - 1u));
        if (block != (*held).block) {
            *held = Held(block, step_at(block));
        }
    }
    return made(x, (*held).step, i);
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
        let x = load4(i / 4u);
        written = put4(written, i, vec4(made_at(i, x.x, &held), made_at(i + 1u, x.y, &held),
                                        made_at(i + 2u, x.z, &held), made_at(i + 3u, x.w, &held)));
    }
}
