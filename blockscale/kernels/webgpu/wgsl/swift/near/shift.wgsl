// Numbers in steps that are powers of two: exact, or so small that they round to 0.
// needs: hardware/{hardware}, step/step, swift/tie/none
fn near4(x: vec4<u32>, s: Step) -> vec4<u32> {
    return four_products(x, vec4(0x7f000000u - s.bits));
}
