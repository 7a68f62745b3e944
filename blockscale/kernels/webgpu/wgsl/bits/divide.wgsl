// fl(a / b), exact in every case, from integers alone.
// needs: bits/parts
fn divide(a: u32, b: u32) -> u32 {
    let sign = (a ^ b) & SIGN;
    let x = a & MAGNITUDE;
    let y = b & MAGNITUDE;
    if (max(x, y) > INFINITY || (x == y && (x == 0u || x == INFINITY))) {
        return NAN;
    }
    if (x == INFINITY || y == 0u) {
        return sign | INFINITY;
    }
    if (x == 0u || y == INFINITY) {
        return sign;
    }
    let p = parts_of(x);
    let q = parts_of(y);
    var rest = p.mantissa % q.mantissa;
    var quotient = p.mantissa / q.mantissa;
    for (var digit = 0u; digit < 5u; digit++) { // of six bits each: 31 bits in all
        quotient = (quotient << 6u) | ((rest << 6u) / q.mantissa);
        rest = (rest << 6u) % q.mantissa;
    }
    return sign | rounded_float(quotient | u32(rest != 0u), p.exponent - q.exponent - 30);
}
