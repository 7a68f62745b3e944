// The order of floats by integers, which drop no NaN and flush nothing.
// needs: bits/parts

// Ascends as the floats do; the same for 0 and -0.
fn order(x: u32) -> i32 {
    let size = bitcast<i32>(x & MAGNITUDE);
    return select(size, -size, x >= SIGN);
}

fn either_nan(a: u32, b: u32) -> bool {
    return is_nan(a) || is_nan(b);
}
