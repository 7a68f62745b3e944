// Formats without an offset.
// needs: step/step
fn without_offset(x: u32, s: Step) -> u32 {
    return x;
}

fn with_offset(value: u32, s: Step) -> u32 {
    return value;
}

fn without_offsets(x: vec4<u32>, s: Step) -> vec4<u32> {
    return x;
}

fn with_offsets(values: vec4<u32>, s: Step) -> vec4<u32> {
    return values;
}
