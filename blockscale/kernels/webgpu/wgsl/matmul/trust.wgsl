// Whether a quick sum can stand: what the hardware flushes to zero is less than a unit of a number
// that is not small, and no number that is not finite hides in it.
fn trusted(y: u32) -> bool {
    let size = y & 0x7fffffffu;
    return size >= sizes.least && size < 0x7f800000u;
}
