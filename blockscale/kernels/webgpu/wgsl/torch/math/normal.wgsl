// Whether a device's own float operations are exact on a number, or on what they gave.
fn normal(x: u32) -> bool {
    return ((x >> 23u) & 0xffu) - 1u < 254u;
}
