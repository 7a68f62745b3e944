// needs: element/minifloat, round/{rounding}
// Whether a number does not saturate: in the binade of the largest value, by its units there.
fn inside(y: u32, s: Step) -> bool {
    let size = y & MAGNITUDE;
    let field = max(size >> 23u, LEAST);
    let top = LARGEST_VALUE >> 23u;
    if (field != top) {
        return field < top;
    }
    let most = ((LARGEST_VALUE & 0x7fffffu) | 0x800000u) >> (23u - MBITS);
    return rounded_by_shift(size, field - MBITS, y >= SIGN, 0u) <= most;
}
