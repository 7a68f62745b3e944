// A code -> its value.
// needs: float/{dtype}, code/{how}
fn result_of(code: u32, s: Step, index: u32) -> u32 {
    return narrow(value_of(code, s));
}
