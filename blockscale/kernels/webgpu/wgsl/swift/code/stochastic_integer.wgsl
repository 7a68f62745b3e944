// Integers, stochastically, in steps that are powers of two: of |y| in units of 2^-24, rounded up,
// what is left above a whole number is larger than u's 24 bits, or not. Exact: |y| is at most 2^7,
// and what is flushed on the way is a unit.
// needs: hardware/{hardware}, swift/code/packed, bits/parts
const ABOVE_ALL: u32 = 0x1000000u; // 2^24

fn prepare_code(lane: u32) {}

struct Coded {
    steps: vec4<i32>,
}

fn coded(near: vec4<u32>, words: vec4<u32>, s: Step) -> Coded {
    let size = four_least(four_sizes(near), vec4((126u + BITS) << 23u)); // 2^(BITS - 1)
    let units = ceil(bitcast<vec4<f32>>(four_products(size, vec4(0x4b800000u))));
    let some = max(vec4<u32>(units), min(near << vec4(1u), vec4(1u)));
    let steps = vec4<i32>((some + (vec4(ABOVE_ALL - 1u) - words)) >> vec4(24u));
    let negative = near >= vec4(SIGN);
    return Coded(select(min(steps, vec4(HIGH)), -min(steps, vec4(-LOW)), negative));
}

fn codes_of(c: Coded, s: Step) -> u32 {
    return packed4(vec4<u32>(c.steps) & vec4((1u << BITS) - 1u));
}

fn values_of_coded(c: Coded, s: Step) -> vec4<u32> {
    return four_products(bitcast<vec4<u32>>(vec4<f32>(c.steps)), vec4(s.bits));
}
