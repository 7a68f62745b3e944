// Columns of numbers that ask for exact arithmetic, each number alone.
// needs: swift/load/{load}, choose/{rule}, step/{step}, code/{how}, statistics/{statistic}
// top: the unit of the first row; c: which of its columns
fn exact_choice(top: u32, c: u32) -> Chosen {
    var found = NOTHING;
    for (var r = 0u; r < ROWS * PARTS; r++) {
        found = max(found, keys_of(four_of(x[top + r * sizes.units], c / 4u)[c % 4u]));
    }
    return choose(range_of(found), 0u);
}
