// Minifloats of at most five exponent bits: their bits, moved, are those of a float16 that is
// VALUE_FACTOR times smaller. Devices that widen subnormal float16 take this way (matmul/halves.py).
// needs: matmul/decode/unit
const HALF_SHIFT: u32 = 10u - MBITS; // of a magnitude to its place in a float16
const HALF_MAGNITUDE: u32 = ((1u << (BITS - 1u)) - 1u) << HALF_SHIFT;
const HALF_MAGNITUDES: u32 = HALF_MAGNITUDE | (HALF_MAGNITUDE << 16u);

fn prepare_decode(lane: u32) {}

// Two codes, each at the upper end of 16 bits -> their values.
fn pair_of(codes: u32) -> vec2<f32> {
    let size = (codes >> (6u + MBITS - BITS)) & HALF_MAGNITUDES;
    return unpack2x16float((codes & 0x80008000u) | size);
}

fn values_of(patterns: vec4<u32>, zero: f32) -> vec4<f32> {
    let first = (patterns.x | patterns.y << 16u) << (16u - BITS);
    let second = (patterns.z | patterns.w << 16u) << (16u - BITS);
    return vec4(pair_of(first), pair_of(second));
}

fn unit_of(word: u32, zero: f32) -> Unit {
    if (BITS == 8u) {
        let even = pair_of(word << 8u);
        let odd = pair_of(word);
        return Unit(vec4(even.x, odd.x, even.y, odd.y), vec4<f32>());
    }
    let p0 = pair_of(word << 12u);
    let p1 = pair_of(word << 8u);
    let p2 = pair_of(word << 4u);
    let p3 = pair_of(word);
    return Unit(vec4(p0.x, p1.x, p2.x, p3.x), vec4(p0.y, p1.y, p2.y, p3.y));
}

// Whether one of four codes, a byte each, is NaN where a float16 would not be.
fn any_reserved(word: u32) -> bool {
    return ONE_NAN && (((word & 0x7f7f7f7fu) + 0x01010101u) & 0x80808080u) != 0u;
}
