// needs: hardware/{hardware}, bits/multiply
// fl(a * b): the device's product of normal numbers where it is normal, else that of integers.
fn quick_multiply(a: u32, b: u32) -> u32 {
    let near = product(a, b);
    let a_field = (a >> 23u) & 0xffu;
    let b_field = (b >> 23u) & 0xffu;
    if (max(max(a_field, b_field) - 1u, min(a_field, b_field) - 1u) < 254u
        && ((near >> 23u) & 0xffu) - 2u < 252u) {
        return near;
    }
    return multiply(a, b);
}
