// Minifloats, to nearest, ties to even: beside 2^(23 - MBITS) times its binade the neighbours of a
// number are one code apart (quick/minifloat).
// needs: hardware/{hardware}, swift/code/packed, bits/parts
struct Coded {
    near: vec4<u32>,
    magic: vec4<u32>,
    sums: vec4<u32>,
}

fn prepare_code(lane: u32) {}

fn coded(near: vec4<u32>, words: vec4<u32>, s: Step) -> Coded {
    let bounded = four_least(four_sizes(near), vec4(LARGEST_VALUE));
    let binade = max(bounded & vec4(INFINITY), vec4(LEAST << 23u));
    let magic = binade + vec4((23u - MBITS) << 23u);
    return Coded(near, magic, four_sums(bounded, magic));
}

fn codes_of(c: Coded, s: Step) -> u32 {
    let sizes_of_all = (c.sums - c.magic) + (c.magic >> vec4(23u - MBITS));
    let each = (LEAST + 23u - MBITS) << MBITS; // too much
    let above = c.near >> vec4(32u - BITS);
    let signs = EACH_BY_ONE << (BITS - 1u);
    let negative = (above.x | (above.y << BITS) | (above.z << (2u * BITS)) | (above.w << (3u * BITS)));
    return (packed4(sizes_of_all) - each * EACH_BY_ONE) | (negative & signs);
}

fn values_of_coded(c: Coded, s: Step) -> vec4<u32> {
    let sizes_of_all = four_sums(c.sums, c.magic | vec4(SIGN));
    return four_products(sizes_of_all | (c.near & vec4(SIGN)), vec4(s.bits));
}
