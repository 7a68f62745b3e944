fn of_one(x: u32) -> u32 {
    return select(x, 0u, x >> 31u == 1u);
}
