// What the scale of a block is chosen from, number by number.
// needs: swift/lanes, statistics/{statistic}
fn exact_range(block: u32) -> Range {
    var found = NOTHING;
    for (var i = 0u; i < sizes.block; i++) {
        found = max(found, keys_of(number_at(element_of(block, i))));
    }
    return range_of(found);
}
