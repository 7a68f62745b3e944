// Where elements of operands lie that all lie as the result does.
fn address(i: u32, which: u32) -> u32 {
    return i;
}
