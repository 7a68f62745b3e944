// Signs: 1 is +1, which zeros of both signs are, too.
// needs: hardware/{hardware}, swift/code/packed, bits/parts
fn prepare_code(lane: u32) {}

struct Coded {
    codes: vec4<u32>,
}

fn coded(near: vec4<u32>, words: vec4<u32>, s: Step) -> Coded {
    return Coded(vec4<u32>(near <= vec4(SIGN)));
}

fn codes_of(c: Coded, s: Step) -> u32 {
    return packed4(c.codes);
}

fn values_of_coded(c: Coded, s: Step) -> vec4<u32> {
    return vec4(s.bits) | ((vec4(1u) - c.codes) << vec4(31u));
}
