// fl(a * b): the device's where that is exact, else from integers.
// needs: hardware/{hardware}, bits/multiply, torch/math/normal
fn of_two(a: u32, b: u32) -> u32 {
    let near = product(a, b);
    if (normal(a) && normal(b) && normal(near)) {
        return near;
    }
    return multiply(a, b);
}
