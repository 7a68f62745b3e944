// needs: hardware/{hardware}, bits/divide
// fl(x / step), where inverse = fl(1 / step) if the step is `ordinary`. A product is at most one
// ulp off; the remainder x - near * step, of which the last 32 bits say all, says which.
fn quotient(x: u32, step: u32, inverse: u32, ordinary: bool) -> u32 {
    let near = product(x, inverse);
    let field = (x >> 23u) & 0xffu;
    let near_field = (near >> 23u) & 0xffu;
    if (!ordinary || max(field - 1u, near_field - 2u) >= 252u) {
        return rare_quotient(x, step, ordinary);
    }
    let divisor = (step & 0x7fffffu) | 0x800000u;
    let places = field - near_field - ((step >> 23u) & 0xffu) + 150u; // 23 or 24
    let whole = ((x & 0x7fffffu) | 0x800000u) << (places & 31u);
    let rest = i32(whole - ((near & 0x7fffffu) | 0x800000u) * divisor);
    // Below a power of two neighbours are half as far apart, but a rest there is -2^23 at most.
    return near + u32(2 * rest > i32(divisor)) - u32(2 * rest < -i32(divisor));
}

fn rare_quotient(x: u32, step: u32, ordinary: bool) -> u32 {
    if (ordinary && (x << 1u) == 0u) {
        return x ^ (step & 0x80000000u);
    }
    return divide(x, step);
}
