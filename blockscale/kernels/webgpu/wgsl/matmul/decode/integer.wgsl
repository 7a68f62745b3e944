// Integers as floats: behind 2^23 a float's last bits are an integer.
// needs: matmul/decode/unit
const PLACE_OF_ZERO: u32 = 0x800000u | (u32(SIGNED) << (BITS - 1u));

fn prepare_decode(lane: u32) {}

fn values_of(patterns: vec4<u32>, zero: f32) -> vec4<f32> {
    let behind = bitcast<vec4<f32>>(patterns ^ vec4(0x4b000000u | (PLACE_OF_ZERO & 0x7fffffu)));
    if (FLOAT_ZERO) {
        return (behind - f32(PLACE_OF_ZERO)) - zero;
    }
    return behind - (f32(PLACE_OF_ZERO) + zero); // both are integers
}

fn unit_of(word: u32, zero: f32) -> Unit {
    return split_unit(word, zero);
}

fn any_reserved(word: u32) -> bool {
    return false;
}
