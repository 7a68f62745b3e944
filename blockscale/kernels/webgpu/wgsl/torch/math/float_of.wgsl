// Floats for functions whose result is near, not exact: of the bits, and back.
fn float_of(x: u32) -> f32 {
    return bitcast<f32>(x);
}

fn bits_of(x: f32) -> u32 {
    return bitcast<u32>(x);
}

const NAN: u32 = 0x7fc00000u;
const INFINITE: u32 = 0x7f800000u;
