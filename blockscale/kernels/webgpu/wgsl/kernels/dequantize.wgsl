// Values of codes: a chunk of CHUNK to an invocation.
// needs: grid, load/fours_in_{codes}, blocks/four, code/{how}, store/{store}

fn values_at(i: u32, codes: vec4<u32>, shared_step: Step) -> vec4<u32> {
    if (SHARED) {
        return values_of(codes, shared_step);
    }
    let blocks = blocks_of_four(i);
    if (all(blocks == blocks.xxxx)) {
        return values_of(codes, step_at(blocks.x));
    }
    return vec4(value_of(codes.x, step_at(blocks.x)), value_of(codes.y, step_at(blocks.y)),
                value_of(codes.z, step_at(blocks.z)), value_of(codes.w, step_at(blocks.w)));
}

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>,
        @builtin(local_invocation_index) lane: u32) {
    let start = (group_number(group, groups) * 256u + lane) * CHUNK;
    if (start >= sizes.bound) {
        return;
    }
    let shared_step = step_at(block_of(sizes.first + start));
    for (var i = start; i < min(start + CHUNK, sizes.bound); i += 4u) {
        store4(i / 4u, values_at(i, codes4(i), shared_step));
    }
}
