// Elements that are divided by their step.
// needs: bits/quotient, offset/{offset}, element/{element}, quick/{quick}, code/value
fn in_steps(x: u32, s: Step) -> u32 {
    return quotient(without_offset(x, s), s.bits, s.inverse, s.ordinary);
}

fn code_of(x: u32, s: Step, word: u32) -> u32 {
    let quick = quick_code(product(without_offset(x, s), s.inverse), s);
    if (quick != UNSURE) {
        return quick;
    }
    return encode(in_steps(x, s), s, word);
}
