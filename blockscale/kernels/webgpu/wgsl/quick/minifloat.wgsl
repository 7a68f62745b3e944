// The code of a minifloat from a product that is at most an ulp off, where a correct quotient would
// have the same. Nearest, ties to even.
// needs: bits/parts, round/even
const UNSURE: u32 = 0xffffffffu;

fn quick_code(near: u32, s: Step) -> u32 {
    let size = near & MAGNITUDE;
    let bounded = min(size, LARGEST_VALUE);
    let field = max(bounded >> 23u, LEAST);
    var steps = 0u;
    var unsure = !s.ordinary || size > INFINITY;
    if (EXACT_PRODUCT) {
        steps = rounded_even(bounded, field - MBITS);
    } else {
        let fraction = 22u - MBITS;
        let half = 1u << (fraction - 1u);
        let units = rounded_even(bounded, field - 22u) + half;
        steps = units >> fraction;
        // a product and its rounding to units are at most a unit off: not within two of a tie
        unsure = unsure || ((units + 2u) & ((1u << fraction) - 1u)) <= 4u;
    }
    let code = (((field - LEAST) << MBITS) + steps) | ((near >> 31u) << (BITS - 1u));
    return select(code, UNSURE, unsure);
}
