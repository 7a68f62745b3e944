// Ties between minifloats. 2.5 ulps of the inverse and half of the product are three units at most
// beside twice the binade (quick/minifloat), the sum's rounding half of one; of numbers below the
// first binade less.
// needs: hardware/{hardware}, quick/minifloat, swift/tie/settled
const WIDE_TIE: u32 = QUICK_TIE + 2u;

fn binade_of(size: vec4<u32>) -> vec4<u32> {
    return max(size & vec4(INFINITY), vec4(LEAST << 23u));
}

fn is_near_a_tie(near: vec4<u32>, s: Step) -> bool {
    let bounded = four_least(four_sizes(near), vec4(LARGEST_VALUE));
    let beside = four_sums(bounded, four_products(binade_of(bounded), vec4(WIDE_TIE)));
    return smallest_of_four(beside & vec4((1u << QUICK_FRACTION) - 1u)) <= 8u;
}

fn settled4(x: vec4<u32>, near: vec4<u32>, s: Step) -> vec4<u32> {
    let size = near & vec4(MAGNITUDE);
    let binade = binade_of(size);
    let magic = binade + vec4((23u - MBITS) << 23u);
    let whole = four_sums(four_sums(size, magic), magic | vec4(SIGN));
    let up = four_sums(size, whole ^ vec4(SIGN)) < vec4(SIGN);
    let half = binade - vec4((MBITS + 1u) << 23u); // of what codes are apart
    let ties = four_sums(whole, select(half | vec4(SIGN), half, up));
    let sign = near & vec4(SIGN);
    return settled(x, near, ties | sign, half - vec4(0x800000u), s);
}

// Whether what settles a tie is normal: the least one is 2^-10 or more, of steps of 2^-64 or more.
fn settles(step: u32) -> bool {
    return step >= 0x1f800000u;
}
