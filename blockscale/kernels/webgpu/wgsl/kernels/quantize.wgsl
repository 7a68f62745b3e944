// Codes or values of numbers whose blocks have a scale: a chunk of CHUNK to an invocation.
// needs: grid, load/{load}, blocks/four, result/{result}

fn made_at(i: u32, x: vec4<u32>, shared_step: Step) -> vec4<u32> {
    if (SHARED) {
        return made4(x, shared_step, i);
    }
    let blocks = blocks_of_four(i);
    if (all(blocks == blocks.xxxx)) {
        return made4(x, step_at(blocks.x), i);
    }
    return vec4(made(x.x, step_at(blocks.x), i), made(x.y, step_at(blocks.y), i + 1u),
                made(x.z, step_at(blocks.z), i + 2u), made(x.w, step_at(blocks.w), i + 3u));
}

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>,
        @builtin(local_invocation_index) lane: u32) {
    let start = (group_number(group, groups) * 256u + lane) * CHUNK;
    if (start >= sizes.bound) {
        return;
    }
    let shared_step = step_at(block_of(sizes.first + start));
    var written = written_from(start);
    for (var i = start; i < start + CHUNK; i += 4u) {
        written = put4(written, i, made_at(i, load4(i / 4u), shared_step));
    }
}
