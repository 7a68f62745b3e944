// Floats for functions whose result is near, not exact: of the bits, and back.
// needs: bits/parts
fn float_of(x: u32) -> f32 {
    return bitcast<f32>(x);
}

fn bits_of(x: f32) -> u32 {
    return bitcast<u32>(x);
}
