// What is prepared once for a block.
struct Step {
    bits: u32, // float32: what codes are multiplied by
    inverse: u32, // what x is multiplied by: float32, or for `shift` the exponent of `bits`
    zero: i32, // the zero point: an integer, or the bits of a float32
    offset: u32, // float32: what is added to values
    ordinary: bool, // 2^-100 … 2^100 in magnitude: products with it are normal
}

fn is_ordinary(step: u32) -> bool {
    return (step & 0x7fffffffu) - 0x0d800000u <= 0x64000000u; // the bits of 2^-100, to 2^100
}
