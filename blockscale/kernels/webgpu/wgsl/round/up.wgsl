// needs: round/even, round/shift
fn goes_up(whole: u32, rest: u32, negative: bool, word: u32) -> bool {
    return !negative && rest != 0u;
}

fn rounded(size: u32, unit: u32, negative: bool, word: u32) -> u32 {
    return rounded_by_shift(size, unit, negative, word);
}
