// The second operand is a number.
fn second(i: u32) -> u32 {
    return sizes.number;
}
