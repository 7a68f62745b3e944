// fl(a - b): the device's where that is exact, else from integers.
// needs: hardware/{hardware}, bits/add, torch/math/normal
fn of_two(a: u32, b: u32) -> u32 {
    let near = sum(a, b ^ 0x80000000u);
    if (normal(a) && normal(b) && normal(near)) {
        return near;
    }
    return subtract(a, b);
}
