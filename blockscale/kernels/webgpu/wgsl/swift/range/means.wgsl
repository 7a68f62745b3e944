// What the scale of a block is chosen from, number by number: a mean.
// needs: swift/lanes, statistics/{statistic}, statistics/sum, choose/{rule}, bits/multiply
fn exact_range(block: u32) -> Range {
    var found = NOTHING;
    for (var i = 0u; i < sizes.block; i++) {
        found = max(found, keys_of(number_at(element_of(block, i))));
    }
    let field = field_of(found);
    var own = 0u;
    for (var turn = 0u; turn < MEANS; turn++) {
        let least = multiply(0x3f333333u, own);
        var sum = Sum(0u, 0u, 0u);
        for (var i = 0u; i < sizes.block; i++) {
            sum = both(sum, counted(number_at(element_of(block, i)), field, least, turn == 1u));
        }
        own = mean_of(vec2(sum.low, sum.high), sum.count, field);
    }
    return Range(own | 0x80000000u, own, false);
}
