// Minifloats, stochastically: |y| and (1 - u) codes, rounded down, beside twice the binade (as in
// quick/minifloat). Not sure within four units of a code.
// needs: quick/quick
const QUICK_FRACTION: u32 = 22u - MBITS; // bits beside twice the binade

fn quick_codes(near: vec4<u32>, s: Step, words: vec4<u32>) -> Quick {
    let bounded = four_least(near & vec4(MAGNITUDE), vec4(LARGEST_VALUE));
    let binade = max(bounded & vec4(INFINITY), vec4(LEAST << 23u));
    let rest_of_one = four_sums(vec4(0x40000000u), vec4(SIGN | ONE) | (words >> vec4(1u))); // 1 - u
    let part = four_products(rest_of_one, vec4((127u - MBITS) << 23u));
    let times = four_sums(vec4(0x40000004u), part); // 2, four units, and that part
    let moved = four_sums(bounded, four_products(binade, times));
    let steps = (moved - binade - vec4(0x800000u)) >> vec4(QUICK_FRACTION);
    let size = (binade >> vec4(23u - MBITS)) + steps - vec4(LEAST << MBITS);
    let codes = size | ((near >> vec4(32u - BITS)) & vec4(1u << (BITS - 1u)));
    let rest = moved & vec4((1u << QUICK_FRACTION) - 1u);
    let sure = s.ordinary && finite_together(near) && smallest_of_four(rest) > 8u;
    return Quick(codes, sure);
}
