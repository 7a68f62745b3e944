// fl(a * b), exact in every case, from integers alone.
// needs: bits/parts, bits/wide
fn multiply(a: u32, b: u32) -> u32 {
    let sign = (a ^ b) & SIGN;
    let x = a & MAGNITUDE;
    let y = b & MAGNITUDE;
    if (max(x, y) >= INFINITY) {
        let bad = max(x, y) > INFINITY || min(x, y) == 0u;
        return select(sign | INFINITY, NAN, bad);
    }
    if (min(x, y) == 0u) {
        return sign;
    }
    let p = parts_of(x);
    let q = parts_of(y);
    let whole = wide_product(p.mantissa, q.mantissa);
    let top = (whole.y << 16u) | (whole.x >> 16u) | u32((whole.x & 0xffffu) != 0u);
    return sign | rounded_float(top, p.exponent + q.exponent + 16);
}
