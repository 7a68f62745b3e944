// The code of an integer from a product that is at most an ulp off, where a correct quotient would
// have the same. Nearest, ties to even.
// needs: bits/parts, round/even, zero/{zero}
const UNSURE: u32 = 0xffffffffu;
const QUICK_UNIT: u32 = 104u + BITS; // 2^BITS is 2^23 of these units
const QUICK_FRACTION: u32 = 23u - BITS;

fn quick_code(near: u32, s: Step) -> u32 {
    let size = near & MAGNITUDE;
    let bounded = min(size, (127u + BITS) << 23u); // beyond 2^BITS all saturate
    var whole = 0u;
    var unsure = !s.ordinary || size > INFINITY || !fits_zero(s);
    if (EXACT_PRODUCT) {
        whole = rounded_even(bounded, 127u);
    } else {
        let half = 1u << (QUICK_FRACTION - 1u);
        let units = rounded_even(bounded, QUICK_UNIT) + half;
        whole = units >> QUICK_FRACTION;
        // a product and its rounding to units are at most a unit off: not within two of a tie
        unsure = unsure || ((units + 2u) & ((1u << QUICK_FRACTION) - 1u)) <= 4u;
    }
    let steps = select(i32(whole), -i32(whole), near >= SIGN);
    return select(u32(clamp(with_zero(steps, s), LOW, HIGH)) & MASK, UNSURE, unsure);
}
