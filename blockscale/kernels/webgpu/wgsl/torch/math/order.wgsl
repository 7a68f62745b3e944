// The order of floats by integers, which drop no NaN and flush nothing.
fn is_nan(x: u32) -> bool {
    return (x & 0x7fffffffu) > 0x7f800000u;
}

// Ascends as the floats do; the same for 0 and -0.
fn order(x: u32) -> i32 {
    let size = bitcast<i32>(x & 0x7fffffffu);
    return select(size, -size, x >> 31u == 1u);
}

fn either_nan(a: u32, b: u32) -> bool {
    return is_nan(a) || is_nan(b);
}
