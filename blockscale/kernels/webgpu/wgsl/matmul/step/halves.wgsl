// A step of two levels, the inner one a minifloat that float16 has at another exponent
// (matmul/halves.py): as it is defined, unless it is subnormal.
// needs: given/step
fn quick_step(block: u32) -> Step {
    let code = given_scale(block);
    let half = (code & 0x80u) << 8u | (code & 0x7fu) << (10u - INNER_MBITS);
    let inner = unpack2x16float(half).x * bitcast<f32>(INNER_FACTOR);
    let step = bitcast<u32>(inner * bitcast<f32>(given_outer(block)));
    let missing = INNER_ONE_NAN && (code & 0x7fu) == 0x7fu;
    return Step(select(step, 0x7fc00000u, missing), 0u, given_zero(block), given_offset(block), true);
}
