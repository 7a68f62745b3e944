// The bits of a code moved to where a float32 has them are right but in the first binade, which
// starts at 0 and is twice as steep.
// needs: element/{element}, hardware/{hardware}
struct Decoded {
    values: vec4<u32>,
    sure: bool, // they are right, and normal or 0
}

fn four_decoded(codes: vec4<u32>, s: Step) -> Decoded {
    let size = codes & vec4((1u << (BITS - 1u)) - 1u);
    let moved = (size << vec4(23u - MBITS)) + vec4((LEAST - 1u) << 23u);
    let steep = four_sums(four_products(moved, vec4(0x40000000u)), vec4(SIGN | (LEAST << 23u)));
    let sign = (codes << vec4(32u - BITS)) & vec4(SIGN);
    return Decoded(four_least(moved, steep) | sign, largest_of_four(size) <= MAX_CODE);
}

fn prepare_values(lane: u32) {}
