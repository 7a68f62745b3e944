// needs: hardware/{hardware}, bits/divide, bits/corrected
// fl(x / step), where inverse = fl(1 / step) if the step is `ordinary`. A product is at most one
// ulp off.
fn quotient(x: u32, step: u32, inverse: u32, ordinary: bool) -> u32 {
    let near = product(x, inverse);
    if (!ordinary || !is_correctable(x, near)) {
        return rare_quotient(x, step, ordinary);
    }
    return corrected(x, near, step);
}

fn rare_quotient(x: u32, step: u32, ordinary: bool) -> u32 {
    if (ordinary && (x << 1u) == 0u) {
        return x ^ (step & 0x80000000u);
    }
    return divide(x, step);
}
