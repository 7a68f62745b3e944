// Whether a sum of four magnitudes is finite, as it is if they are, but for the largest numbers.
fn finite_together(x: vec4<u32>) -> bool {
    let size = bitcast<vec4<f32>>(x & vec4(0x7fffffffu));
    return bitcast<u32>((size.x + size.y) + (size.z + size.w)) < 0x7f800000u;
}

fn smallest_of_four(x: vec4<u32>) -> u32 {
    return min(min(x.x, x.y), min(x.z, x.w));
}

fn largest_of_four(x: vec4<u32>) -> u32 {
    return max(max(x.x, x.y), max(x.z, x.w));
}
