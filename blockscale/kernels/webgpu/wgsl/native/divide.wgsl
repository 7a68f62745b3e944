// needs: native/float
fn divide(a: u32, b: u32) -> u32 {
    return told(bitcast<f32>(a) / bitcast<f32>(b));
}
