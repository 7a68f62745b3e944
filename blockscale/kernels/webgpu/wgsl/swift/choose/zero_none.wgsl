// Formats without a zero point.
struct Zero {
    point: i32,
    sure: bool,
}

fn zero_found(found: Keys, inverse: u32) -> Zero {
    return Zero(0, true);
}
