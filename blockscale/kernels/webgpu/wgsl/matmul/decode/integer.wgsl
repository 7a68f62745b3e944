// Integers as floats: behind 2^23 a float's last bits are an integer.
const SIGN_OF_CODE: u32 = select(0u, 1u << (BITS - 1u), SIGNED);

fn prepare_decode(lane: u32) {}

fn values_of(patterns: vec4<u32>) -> vec4<f32> {
    return bitcast<vec4<f32>>(patterns ^ vec4(0x4b000000u | SIGN_OF_CODE)) - f32(0x800000u | SIGN_OF_CODE);
}
