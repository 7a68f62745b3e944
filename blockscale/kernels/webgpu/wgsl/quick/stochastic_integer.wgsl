// Integers, stochastically: |y| + 1 - u, rounded down, beside a power of two where the neighbours of
// a float32 are 2^-QUICK_FRACTION apart. Not sure within four of those from a whole number.
// needs: quick/quick, zero/{zero}
const QUICK_FRACTION: u32 = 22u - BITS;
const QUICK_CENTER: u32 = (128u + BITS) << 23u; // 2^(BITS + 1)
const QUICK_START: u32 = QUICK_CENTER + (2u << QUICK_FRACTION) + 4u;

fn quick_codes(near: vec4<u32>, s: Step, words: vec4<u32>) -> Quick {
    let low = bitcast<u32>(f32(LOW - zero_of(s)));
    let high = bitcast<u32>(f32(HIGH - zero_of(s)));
    let bounded = four_least(four_most(near, vec4(low)), vec4(high));
    let negative = vec4(SIGN | ONE) | (words >> vec4(1u)); // -(1 + u)
    let moved = four_sums(bounded & vec4(MAGNITUDE), four_sums(vec4(QUICK_START), negative));
    let whole = (moved - vec4(QUICK_CENTER)) >> vec4(QUICK_FRACTION);
    let steps = select(whole, vec4(0u) - whole, bounded >= vec4(SIGN));
    let codes = (steps + vec4(u32(zero_of(s)))) & vec4(MASK);
    let rest = moved & vec4((1u << QUICK_FRACTION) - 1u);
    let sure = s.ordinary && finite_together(near) && fits_zero(s);
    return Quick(codes, sure && smallest_of_four(rest) > 8u);
}
