// needs: hardware/{hardware}
// Nearest, ties to even, as `rounded`: beside 2^23 units the neighbours of a float32 are a unit
// apart. Not where subnormals count, which sums may flush.
fn rounded_even(size: u32, unit: u32) -> u32 {
    let magic = (unit + 23u) << 23u;
    return sum(size, magic) - magic;
}
