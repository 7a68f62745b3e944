// needs: hardware/{hardware}
// fl(1 / x) of a number whose magnitude is 2^-120 … 2^120: the device's, put right by the remainder
// 2^47 - near * x in units of the last places, of which the last 32 bits say all.
fn reciprocal(x: u32) -> u32 {
    let mantissa = (x & 0x7fffffu) | 0x800000u;
    let field = (x >> 23u) & 0xffu;
    if (mantissa == 0x800000u) {
        return (x & 0x80000000u) | ((254u - field) << 23u);
    }
    let binade = (253u - field) << 23u; // of the result
    var near = clamp(ratio(0x3f800000u, x & 0x7fffffffu), binade, binade + 0x7fffffu);
    var rest = 0 - i32(((near & 0x7fffffu) | 0x800000u) * mantissa);
    for (var i = 0u; i < 3u; i++) { // WGSL's division may be off by 2.5 ulps
        let more = i32(2 * rest > i32(mantissa)) - i32(2 * rest < -i32(mantissa));
        near += u32(more);
        rest -= more * i32(mantissa);
    }
    return (x & 0x80000000u) | near;
}
