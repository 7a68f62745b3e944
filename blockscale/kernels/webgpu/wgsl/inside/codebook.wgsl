// needs: bits/parts
// Whether a number lies between the smallest and the largest value of the table.
fn inside(y: u32, s: Step) -> bool {
    return !is_nan(y) && !less(y, LOWEST) && !less(HIGHEST, y);
}
