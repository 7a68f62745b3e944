// needs: statistics/range, bits/add
fn numerator(r: Range) -> u32 {
    return min(subtract(r.high, r.low), LARGEST);
}
