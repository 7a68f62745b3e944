// Integers, to nearest, ties to even. Beside 1.5 * 2^23 the neighbours of a float32 are whole.
// needs: quick/quick, zero/{zero}
const QUICK_FRACTION: u32 = select(23u, 22u, HAS_ZERO || !SIGNED) - BITS; // bits, beside ...
const QUICK_CENTER: u32 = ((150u - QUICK_FRACTION) << 23u) + 0x400000u; // 1.5 * 2^(23 - those)
// What lies within two such units below and above a tie has a fraction of at most four there.
const QUICK_TIE: u32 = QUICK_CENTER + (1u << (QUICK_FRACTION - 1u)) + 2u;

fn quick_codes(near: vec4<u32>, s: Step, words: vec4<u32>) -> Quick {
    let low = bitcast<u32>(f32(LOW - zero_of(s)));
    let high = bitcast<u32>(f32(HIGH - zero_of(s)));
    let bounded = four_least(four_most(near, vec4(low)), vec4(high));
    let codes = (four_sums(bounded, vec4(0x4b400000u)) + vec4(u32(zero_of(s)))) & vec4(MASK);
    var sure = s.ordinary && finite_together(near) && fits_zero(s);
    if (!EXACT_PRODUCT) {
        let rest = four_sums(bounded, vec4(QUICK_TIE)) & vec4((1u << QUICK_FRACTION) - 1u);
        sure = sure && smallest_of_four(rest) > 4u;
    }
    return Quick(codes, sure);
}
