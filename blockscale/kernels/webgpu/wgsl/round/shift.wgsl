// How many units 2^(unit - 127) a magnitude is, rounded by `goes_up`; it is at most 2^23 of them.
fn rounded_by_shift(size: u32, unit: u32, negative: bool, word: u32) -> u32 {
    let field = max(size >> 23u, 1u);
    let mantissa = (size & 0x7fffffu) | select(0u, 0x800000u, size >= 0x800000u);
    let shift = unit + 23u - field;
    if (shift == 0u) {
        return mantissa;
    }
    var whole = 0u;
    var rest = mantissa; // the fraction in units of 2^-32; its last bit stands for what is below
    if (shift < 32u) {
        whole = mantissa >> shift;
        rest = mantissa << (32u - shift);
    } else if (shift > 32u) {
        let lost = min(shift - 32u, 31u);
        let kept = mantissa >> lost;
        rest = kept | u32((kept << lost) != mantissa);
    }
    return whole + u32(goes_up(whole, rest, negative, word));
}
