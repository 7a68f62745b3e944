// fl(i)
// needs: bits/parts
fn to_float(i: i32) -> u32 {
    let negative = i < 0;
    let size = select(u32(i), 0u - u32(i), negative);
    return (u32(negative) << 31u) | rounded_float(size, 0);
}

// Of a number that is no NaN: the whole number below it in magnitude, -most … most.
fn to_integer(x: u32, most: i32) -> i32 {
    let size = x & MAGNITUDE;
    var whole = 0;
    if (size >= ONE) {
        let p = parts_of(min(size, 0x4e800000u)); // 2^30
        let moved = select(p.mantissa << (u32(p.exponent) & 31u),
                           p.mantissa >> (u32(-p.exponent) & 31u), p.exponent < 0);
        whole = min(i32(moved), most);
    }
    return select(whole, -whole, x >= SIGN);
}
