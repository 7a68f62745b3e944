// Minifloats, to nearest, ties to even. `binade` is the power of two below a number, of the first
// binade for subnormals too: beside 2^(23 - MBITS) of it the neighbours are one code apart.
// needs: quick/quick
const QUICK_FRACTION: u32 = 22u - MBITS; // bits beside twice the binade
// 2, half a code, and two units: what lies within two units of a tie has a fraction of at most four.
const QUICK_TIE: u32 = 0x40000000u + (1u << (QUICK_FRACTION - 1u)) + 2u;

fn quick_codes(near: vec4<u32>, s: Step, words: vec4<u32>) -> Quick {
    let bounded = four_least(near & vec4(MAGNITUDE), vec4(LARGEST_VALUE));
    let binade = max(bounded & vec4(INFINITY), vec4(LEAST << 23u));
    let magic = binade + vec4((23u - MBITS) << 23u);
    let steps = four_sums(bounded, magic) - magic;
    let size = (binade >> vec4(23u - MBITS)) + steps - vec4(LEAST << MBITS);
    let codes = size | ((near >> vec4(32u - BITS)) & vec4(1u << (BITS - 1u)));
    var sure = s.ordinary && finite_together(near);
    if (!EXACT_PRODUCT) {
        let beside = four_sums(bounded, four_products(binade, vec4(QUICK_TIE)));
        let rest = beside & vec4((1u << QUICK_FRACTION) - 1u);
        sure = sure && smallest_of_four(rest) > 4u;
    }
    return Quick(codes, sure);
}
