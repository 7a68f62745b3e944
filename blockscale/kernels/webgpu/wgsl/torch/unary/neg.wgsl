fn of_one(x: u32) -> u32 {
    return x ^ 0x80000000u;
}
