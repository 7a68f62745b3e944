// Scales that are codes of a minifloat.
// needs: element/minifloat_numbers, bits/parts, round/even
const INNER = Minifloat(INNER_BITS, INNER_MBITS, INNER_LEAST, INNER_LARGEST_VALUE,
                        INNER_MAX_CODE, INNER_NAN_CODE, INNER_INFINITY_CODE);

fn inner_value(code: u32) -> u32 {
    return minifloat_value(code, INNER);
}

// wanted: between the smallest normal number and the largest
fn inner_code(wanted: u32) -> u32 {
    let field = wanted >> 23u;
    return ((field - INNER_LEAST) << INNER_MBITS) + rounded_even(wanted, field - INNER_MBITS);
}
