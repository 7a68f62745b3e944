// Elements that are multiplied by the reciprocal of their step.
// needs: bits/quick, offset/{offset}, element/{element}, code/fours
fn in_steps(x: u32, s: Step) -> u32 {
    let moved = without_offset(x, s);
    if (s.ordinary && (moved << 1u) == 0u) { // its reciprocal is finite
        return moved ^ (s.inverse & SIGN);
    }
    return quick_multiply(moved, s.inverse);
}

fn near_products(x: vec4<u32>, s: Step) -> vec4<u32> {
    return four_products(x, vec4(s.inverse));
}
