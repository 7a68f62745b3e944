// A number -> the value of its code.
// needs: float/{dtype}, code/{how}, given/{drawn}
fn result_of(number: u32, s: Step, index: u32) -> u32 {
    return narrow(value_of(code_of(widen(number), s, word_of(index)), s));
}
