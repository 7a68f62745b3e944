// fl(a + b), exact in every case, from integers alone.
// needs: bits/parts
fn add(a: u32, b: u32) -> u32 {
    let larger = select(b, a, (a & MAGNITUDE) >= (b & MAGNITUDE));
    let other = select(a, b, (a & MAGNITUDE) >= (b & MAGNITUDE));
    let x = larger & MAGNITUDE;
    let y = other & MAGNITUDE;
    let opposite = ((larger ^ other) & SIGN) != 0u;
    if (x >= INFINITY) {
        return select(larger, NAN, x > INFINITY || (y == INFINITY && opposite));
    }
    if (y == 0u) {
        return select(larger, larger & other, x == 0u);
    }
    let p = parts_of(x);
    let q = parts_of(y);
    let apart = min(u32(p.exponent - q.exponent), 31u);
    let moved = (q.mantissa << 7u) >> apart;
    let lost = u32((moved << apart) != (q.mantissa << 7u));
    let small = moved | lost;
    let whole = p.mantissa << 7u;
    let sum = select(whole + small, whole - small, opposite);
    if (sum == 0u) {
        return 0u;
    }
    return (larger & SIGN) | rounded_float(sum, p.exponent - 7);
}

fn subtract(a: u32, b: u32) -> u32 {
    return add(a, select(b ^ SIGN, NAN, is_nan(b)));
}
