// Values one by one.
// needs: element/{element}, hardware/{hardware}
struct Decoded {
    values: vec4<u32>,
    sure: bool, // they are right, and normal or 0
}

fn four_decoded(codes: vec4<u32>, s: Step) -> Decoded {
    let found = vec4(decode(codes.x, s), decode(codes.y, s), decode(codes.z, s),
                     decode(codes.w, s));
    return Decoded(found, !FAR_VALUES);
}

fn prepare_values(lane: u32) {}
