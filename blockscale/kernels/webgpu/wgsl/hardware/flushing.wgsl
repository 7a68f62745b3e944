// The float operations of a device that takes every liberty: what tests run on a stricter one.
fn flushed(x: u32) -> u32 {
    return select(x, x & 0x80000000u, (x & 0x7f800000u) == 0u);
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
