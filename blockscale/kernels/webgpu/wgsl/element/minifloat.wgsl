// Small floating-point and logarithmic numbers (docs/numerics.md, section 4).
// needs: bits/parts, round/{rounding}, element/minifloat_numbers, step/step
const ELEMENT = Minifloat(BITS, MBITS, LEAST, LARGEST_VALUE, MAX_CODE, NAN_CODE, INFINITY_CODE);

fn encode(y: u32, s: Step, word: u32) -> u32 {
    if (is_nan(y)) {
        return NAN_CODE;
    }
    let size = min(y & MAGNITUDE, LARGEST_VALUE);
    let field = max(size >> 23u, LEAST);
    var steps = 0u;
    if (LEAST < 32u) { // subnormal float32 count
        steps = rounded_by_shift(size, field - MBITS, y >= SIGN, word);
    } else {
        steps = rounded(size, field - MBITS, y >= SIGN, word);
    }
    return (((field - LEAST) << MBITS) + steps) | ((y >> 31u) << (BITS - 1u));
}

fn decode(code: u32, s: Step) -> u32 {
    return minifloat_value(code, ELEMENT);
}
