// needs: statistics/range
fn numerator(r: Range) -> u32 {
    return r.high & 0x7fffffffu;
}
