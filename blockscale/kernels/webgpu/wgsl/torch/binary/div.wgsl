// fl(a / b): a product with the reciprocal put right by integers, else a division of integers.
// needs: bits/quotient, bits/reciprocal, bits/divide
fn of_two(a: u32, b: u32) -> u32 {
    let field = (b >> 23u) & 0xffu;
    if (field - 27u <= 200u) { // 2^-100 … 2^100
        return quotient(a, b, reciprocal(b), true);
    }
    return divide(a, b);
}
