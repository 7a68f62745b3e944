// Which side of a tie fl(x / step) is on, or whether it is the tie, from x - tie * step. That is
// exact: a tie has at most 12 bits, so have both parts of the step, and x is near the first product.
// needs: hardware/{hardware}, step/step, bits/parts
// ties: the nearest one of each; beside: a number that added to a tie stays within what rounds alike
fn settled(x: vec4<u32>, near: vec4<u32>, ties: vec4<u32>, beside: vec4<u32>, s: Step) -> vec4<u32> {
    let first = s.bits & 0xfffff000u;
    let second = sum(s.bits, first | SIGN);
    let minus = ties ^ vec4(SIGN);
    let rest = four_sums(four_sums(x, four_products(minus, vec4(first))),
                         four_products(minus, vec4(second)));
    // Half a unit of the tie's last place, in numbers. Below a power of two it is half of that, but
    // such ties are those beside 0, and round to what the numbers below them round to.
    let unit = (ties & vec4(INFINITY)) - vec4(24u << 23u);
    let is_tie = (rest & vec4(MAGNITUDE)) <= four_products(unit, vec4(s.bits));
    let moved = four_sums(ties, beside | (rest & vec4(SIGN)));
    let is_near = four_sizes(four_sums(near, minus)) <= (beside & vec4(MAGNITUDE));
    return select(near, select(moved, ties, is_tie), is_near);
}
