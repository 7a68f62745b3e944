// A step that is neither 0 nor infinite; NaN stays.
fn kept_finite(step: u32) -> u32 {
    let size = step & 0x7fffffffu;
    return select((step & 0x80000000u) | clamp(size, 1u, 0x7f7fffffu), step, size > 0x7f800000u);
}
