// needs: statistics/range
fn numerator(r: Range) -> u32 {
    return max(r.low & 0x7fffffffu, r.high & 0x7fffffffu);
}
