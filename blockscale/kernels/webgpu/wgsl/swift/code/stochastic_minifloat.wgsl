// Minifloats, stochastically, in steps that are powers of two: as swift/code/stochastic_integer has
// it, in units of 2^-24 of what codes of a binade are apart.
// needs: hardware/{hardware}, swift/code/packed, bits/parts
const ABOVE_ALL: u32 = 0x1000000u; // 2^24

fn prepare_code(lane: u32) {}

struct Coded {
    steps: vec4<u32>, // of what codes are apart
    binade: vec4<u32>,
    signs: vec4<u32>,
}

fn coded(near: vec4<u32>, words: vec4<u32>, s: Step) -> Coded {
    let size = four_least(four_sizes(near), vec4(LARGEST_VALUE));
    let binade = max(size & vec4(INFINITY), vec4(LEAST << 23u));
    let factor = vec4((278u + MBITS) << 23u) - binade; // 2^(24 + MBITS) of it is one
    let units = ceil(bitcast<vec4<f32>>(four_products(size, factor)));
    let some = max(vec4<u32>(units), min(near << vec4(1u), vec4(1u)));
    let steps = (some + (vec4(ABOVE_ALL - 1u) - words)) >> vec4(24u);
    return Coded(steps, binade, near & vec4(SIGN));
}

fn codes_of(c: Coded, s: Step) -> u32 {
    let sizes_of_all = (c.binade >> vec4(23u - MBITS)) + c.steps - vec4(LEAST << MBITS);
    return packed4(sizes_of_all | (c.signs >> vec4(32u - BITS)));
}

fn values_of_coded(c: Coded, s: Step) -> vec4<u32> {
    let apart = c.binade - vec4(MBITS << 23u);
    let sizes_of_all = four_products(bitcast<vec4<u32>>(vec4<f32>(c.steps)), apart);
    return four_products(sizes_of_all | c.signs, vec4(s.bits));
}
