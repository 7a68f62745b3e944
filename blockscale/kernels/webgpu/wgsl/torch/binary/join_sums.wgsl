// A sum within a longer one, whose order is free: the device's own.
fn of_two(a: u32, b: u32) -> u32 {
    return bitcast<u32>(bitcast<f32>(a) + bitcast<f32>(b));
}
