// needs: element/integer, round/{rounding}, zero/{zero}
// Whether an integer does not saturate: a gradient passes (docs/numerics.md, 5).
fn inside(steps: u32, s: Step) -> bool {
    let y = moved(steps, s);
    let size = min(y & MAGNITUDE, 0x4b000000u); // beyond 2^23 all saturate
    let whole = i32(rounded(size, 127u, y >= SIGN, 0u));
    let code = placed(select(whole, -whole, y >= SIGN), y, s);
    let number = is_finite(y) && !is_nan(steps); // which float zero points take for 0
    return number && code >= LOW && code <= HIGH;
}
