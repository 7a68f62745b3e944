// An offset of the block, which is subtracted first and added last: each is rounded by itself.
// needs: step/step, bits/add
fn without_offset(x: u32, s: Step) -> u32 {
    return subtract(x, s.offset);
}

fn with_offset(value: u32, s: Step) -> u32 {
    return add(value, s.offset);
}

fn without_offsets(x: vec4<u32>, s: Step) -> vec4<u32> {
    return vec4(without_offset(x.x, s), without_offset(x.y, s), without_offset(x.z, s),
                without_offset(x.w, s));
}

fn with_offsets(values: vec4<u32>, s: Step) -> vec4<u32> {
    return vec4(with_offset(values.x, s), with_offset(values.y, s), with_offset(values.z, s),
                with_offset(values.w, s));
}
