// Integers, to nearest, ties to even: beside 1.5 * 2^23 the neighbours of a number are whole.
// needs: hardware/{hardware}, swift/code/packed, zero/{zero}, bits/parts
const WHOLE: u32 = 0x4b400000u;
const HALF_RANGE: u32 = select(0u, 1u << (BITS - 1u), SIGNED);

struct Coded {
    sums: vec4<u32>,
    magic: u32, // WHOLE, which compilers that take sums apart do not see
}

fn prepare_code(lane: u32) {}

fn coded(near: vec4<u32>, words: vec4<u32>, s: Step) -> Coded {
    let low = bitcast<u32>(f32(LOW - zero_of(s)));
    let high = bitcast<u32>(f32(HIGH - zero_of(s)));
    let bounded = four_least(four_most(near, vec4(low)), vec4(high));
    let magic = min(WHOLE, s.bits | INFINITY);
    return Coded(four_sums(bounded, vec4(magic)), magic);
}

fn codes_of(c: Coded, s: Step) -> u32 {
    let more = HALF_RANGE - WHOLE + u32(zero_of(s)); // so that each is 0 … 2^BITS - 1
    return (packed4(c.sums) + more * EACH_BY_ONE) ^ (HALF_RANGE * EACH_BY_ONE);
}

fn values_of_coded(c: Coded, s: Step) -> vec4<u32> {
    return four_products(four_sums(c.sums, vec4(c.magic | SIGN)), vec4(s.bits));
}
