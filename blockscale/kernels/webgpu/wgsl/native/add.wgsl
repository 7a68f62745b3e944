// needs: native/float
fn add(a: u32, b: u32) -> u32 {
    return told(bitcast<f32>(a) + bitcast<f32>(b));
}

fn subtract(a: u32, b: u32) -> u32 {
    return told(bitcast<f32>(a) - bitcast<f32>(b));
}
