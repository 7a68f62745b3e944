// needs: torch/math/error_function
fn of_one(x: u32) -> u32 {
    let size = x & 0x7fffffffu;
    if (size < 0x3f800000u) {
        return bits_of(float_of(x) * odd(size));
    }
    return bits_of(1.0 - complement(size)) | (x & 0x80000000u);
}
