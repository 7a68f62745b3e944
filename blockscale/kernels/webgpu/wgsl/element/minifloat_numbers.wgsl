// A sign, an exponent and a mantissa (docs/numerics.md, 1.1).
struct Minifloat {
    bits: u32,
    mbits: u32,
    least: u32, // the exponent field that a float32 has in its first binade
    largest: u32, // its largest value
    max_code: u32, // and the magnitude code of it
    nan: u32, // the code that is written for NaN: that of 0 where there is none
    infinity: u32, // the magnitude code that is read as infinity; 256 for none
}

fn minifloat_value(code: u32, f: Minifloat) -> u32 {
    let size = code & ((1u << (f.bits - 1u)) - 1u);
    let sign = (code >> (f.bits - 1u)) << 31u;
    var value = (size << (23u - f.mbits)) + ((f.least - 1u) << 23u);
    if (size < (1u << f.mbits)) { // a whole number of the smallest value
        let smallest = 127u + f.mbits - f.least;
        value = select(bitcast<u32>(f32(size)) - (smallest << 23u), 0u, size == 0u);
    }
    if (size > f.max_code) {
        value = select(0x7fc00000u, 0x7f800000u, size == f.infinity);
    }
    return sign | value;
}
