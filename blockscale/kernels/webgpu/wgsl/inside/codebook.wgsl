// needs: bits/parts
// Whether a number lies between the smallest and the largest value of the table: not LOWEST, which
// is 0 where all values are above.
fn inside(y: u32, s: Step) -> bool {
    return !is_nan(y) && !less(y, LEAST_VALUE) && !less(HIGHEST, y);
}
