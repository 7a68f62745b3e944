// Elements that are divided by their step.
// needs: bits/quotient, offset/{offset}, element/{element}, code/fours
fn in_steps(x: u32, s: Step) -> u32 {
    return quotient(without_offset(x, s), s.bits, s.inverse, s.ordinary);
}

fn near_products(x: vec4<u32>, s: Step) -> vec4<u32> {
    return four_products(x, vec4(s.inverse));
}
