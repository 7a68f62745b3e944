// The float operations of a device that takes every liberty: what tests run on a stricter one.
// needs: hardware/fours
fn flushed(x: u32) -> u32 {
    return select(x, x & 0x80000000u, (x & 0x7f800000u) == 0u);
}

fn all_flushed(x: vec4<u32>) -> vec4<u32> {
    return vec4(flushed(x.x), flushed(x.y), flushed(x.z), flushed(x.w));
}

fn product(a: u32, b: u32) -> u32 {
    return flushed(bitcast<u32>(bitcast<f32>(flushed(a)) * bitcast<f32>(flushed(b))));
}

fn sum(a: u32, b: u32) -> u32 {
    return flushed(bitcast<u32>(bitcast<f32>(flushed(a)) + bitcast<f32>(flushed(b))));
}

fn ratio(a: u32, b: u32) -> u32 {
    let near = bitcast<u32>(bitcast<f32>(flushed(a)) / bitcast<f32>(flushed(b)));
    let off = ((a ^ (b >> 3u) ^ (b >> 7u)) % 5u); // two ulps to either side
    return flushed(near + off - 2u);
}

fn four_products(a: vec4<u32>, b: vec4<u32>) -> vec4<u32> {
    let found = bitcast<vec4<f32>>(all_flushed(a)) * bitcast<vec4<f32>>(all_flushed(b));
    return all_flushed(bitcast<vec4<u32>>(found));
}

fn four_sums(a: vec4<u32>, b: vec4<u32>) -> vec4<u32> {
    let found = bitcast<vec4<f32>>(all_flushed(a)) + bitcast<vec4<f32>>(all_flushed(b));
    return all_flushed(bitcast<vec4<u32>>(found));
}

fn four_least(a: vec4<u32>, b: vec4<u32>) -> vec4<u32> {
    let found = min(bitcast<vec4<f32>>(all_flushed(a)), bitcast<vec4<f32>>(all_flushed(b)));
    return all_flushed(bitcast<vec4<u32>>(found));
}

fn four_most(a: vec4<u32>, b: vec4<u32>) -> vec4<u32> {
    let found = max(bitcast<vec4<f32>>(all_flushed(a)), bitcast<vec4<f32>>(all_flushed(b)));
    return all_flushed(bitcast<vec4<u32>>(found));
}

fn four_sizes(x: vec4<u32>) -> vec4<u32> {
    return all_flushed(x) & vec4(0x7fffffffu);
}
