// The float operations of the device. Only on normal numbers with normal results are a product and
// a sum exact everywhere; a ratio is off by some ulps. Where a product may meet a sum, so that a
// device rounds once and not twice, callers do not mind.
// needs: hardware/fours
fn product(a: u32, b: u32) -> u32 {
    return bitcast<u32>(bitcast<f32>(a) * bitcast<f32>(b));
}

fn sum(a: u32, b: u32) -> u32 {
    return bitcast<u32>(bitcast<f32>(a) + bitcast<f32>(b));
}

fn ratio(a: u32, b: u32) -> u32 {
    return bitcast<u32>(bitcast<f32>(a) / bitcast<f32>(b));
}

fn four_products(a: vec4<u32>, b: vec4<u32>) -> vec4<u32> {
    return bitcast<vec4<u32>>(bitcast<vec4<f32>>(a) * bitcast<vec4<f32>>(b));
}

fn four_sums(a: vec4<u32>, b: vec4<u32>) -> vec4<u32> {
    return bitcast<vec4<u32>>(bitcast<vec4<f32>>(a) + bitcast<vec4<f32>>(b));
}

fn four_least(a: vec4<u32>, b: vec4<u32>) -> vec4<u32> {
    return bitcast<vec4<u32>>(min(bitcast<vec4<f32>>(a), bitcast<vec4<f32>>(b)));
}

fn four_most(a: vec4<u32>, b: vec4<u32>) -> vec4<u32> {
    return bitcast<vec4<u32>>(max(bitcast<vec4<f32>>(a), bitcast<vec4<f32>>(b)));
}

fn four_sizes(x: vec4<u32>) -> vec4<u32> {
    return bitcast<vec4<u32>>(abs(bitcast<vec4<f32>>(x)));
}
