// The sign: 1 is +1, 0 is -1.
// needs: bits/parts, step/step
fn encode(y: u32, s: Step, word: u32) -> u32 {
    return u32(y <= SIGN || is_nan(y));
}

fn decode(code: u32, s: Step) -> u32 {
    return select(0xbf800000u, ONE, (code & 1u) == 1u);
}
