// Codes of integers behind the bits of 2^23 are floats, of which that is subtracted.
// needs: element/{element}, zero/{zero}, hardware/{hardware}
struct Decoded {
    values: vec4<u32>,
    sure: bool, // they are right, and normal or 0
}

fn four_decoded(codes: vec4<u32>, s: Step) -> Decoded {
    let turned = select(0u, 1u << (BITS - 1u), SIGNED); // so that they ascend from 0
    let floats = ((codes ^ vec4(turned)) & vec4(MASK)) | vec4(0x4b000000u);
    let least = SIGN | u32(0x4b000000 + i32(turned) + zero_of(s)); // negative
    return Decoded(four_sums(floats, vec4(least)), fits_zero(s));
}

fn prepare_values(lane: u32) {}
