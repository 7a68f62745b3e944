// Tables of which only the ends count: for gradients, which ask for no codes.
// needs: bits/parts, step/step
fn encode(y: u32, s: Step, word: u32) -> u32 {
    return 0u;
}

fn decode(code: u32, s: Step) -> u32 {
    return 0u;
}
