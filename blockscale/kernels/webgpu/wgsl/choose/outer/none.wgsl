// Scales of one level have no outer scale.
fn outer_of(largest: u32) -> u32 {
    return 0u;
}
