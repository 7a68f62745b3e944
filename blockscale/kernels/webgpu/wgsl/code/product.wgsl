// Elements that are multiplied by the reciprocal of their step.
// needs: bits/quick, offset/{offset}, element/{element}, quick/{quick}, code/value
fn in_steps(x: u32, s: Step) -> u32 {
    let moved = without_offset(x, s);
    if (s.ordinary && (moved << 1u) == 0u) { // its reciprocal is finite
        return moved ^ (s.inverse & SIGN);
    }
    return quick_multiply(moved, s.inverse);
}

fn code_of(x: u32, s: Step, word: u32) -> u32 {
    let quick = quick_code(product(without_offset(x, s), s.inverse), s);
    if (quick != UNSURE) {
        return quick;
    }
    return encode(in_steps(x, s), s, word);
}
