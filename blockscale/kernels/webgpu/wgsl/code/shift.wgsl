// Elements whose step is a power of two: their exponent changes.
// needs: bits/divide, offset/{offset}, element/{element}, code/fours
fn in_steps(x: u32, s: Step) -> u32 {
    return shifted(without_offset(x, s), s);
}

fn shifted(x: u32, s: Step) -> u32 {
    let field = (x >> 23u) & 0xffu;
    if (max(field - 1u, field - s.inverse - 1u) < 254u) { // normal before and after
        return x - (s.inverse << 23u);
    }
    if (s.ordinary && (x << 1u) == 0u) {
        return x;
    }
    return divide(x, s.bits);
}

fn near_products(x: vec4<u32>, s: Step) -> vec4<u32> {
    return four_products(x, vec4(0x7f000000u - s.bits)); // of an ordinary step
}
