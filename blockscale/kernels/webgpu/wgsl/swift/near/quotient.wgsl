// Numbers in steps that are floats: products with an inverse that is at most 2.5 ulps off.
// needs: hardware/{hardware}, step/step, swift/tie/{tie}
fn near4(x: vec4<u32>, s: Step) -> vec4<u32> {
    return four_products(x, vec4(s.inverse));
}
