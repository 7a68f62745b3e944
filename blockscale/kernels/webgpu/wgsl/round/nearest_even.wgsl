// needs: round/even, round/shift
fn goes_up(whole: u32, rest: u32, negative: bool, word: u32) -> bool {
    return rest > 0x80000000u || (rest == 0x80000000u && (whole & 1u) == 1u);
}

fn rounded(size: u32, unit: u32, negative: bool, word: u32) -> u32 {
    return rounded_even(size, unit);
}
