// Elements whose step is a power of two: their exponent changes.
// needs: bits/divide, offset/{offset}, element/{element}, quick/{quick}, code/value
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

fn code_of(x: u32, s: Step, word: u32) -> u32 {
    let quick = quick_code(product(without_offset(x, s), 0x7f000000u - s.bits), s);
    if (quick != UNSURE) {
        return quick;
    }
    return encode(in_steps(x, s), s, word);
}
