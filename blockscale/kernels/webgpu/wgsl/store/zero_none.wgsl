fn put_zero(block: u32, zero: i32) {
}
