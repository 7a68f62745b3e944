// A number -> its code.
// needs: float/{dtype}, code/{how}, given/{drawn}
fn result_of(number: u32, s: Step, index: u32) -> u32 {
    return code_of(widen(number), s, word_of(index));
}
