// The float operations of the device. Only on normal numbers with normal results are a product and
// a sum exact everywhere, and no product feeds a sum; a ratio is off by some ulps.
fn product(a: u32, b: u32) -> u32 {
    return bitcast<u32>(bitcast<f32>(a) * bitcast<f32>(b));
}

fn sum(a: u32, b: u32) -> u32 {
    return bitcast<u32>(bitcast<f32>(a) + bitcast<f32>(b));
}

fn ratio(a: u32, b: u32) -> u32 {
    return bitcast<u32>(bitcast<f32>(a) / bitcast<f32>(b));
}
