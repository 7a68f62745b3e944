// The largest number of a block, at least 0. What is not finite: as in statistics/magnitude.
// needs: statistics/range
alias Keys = u32;
const NOTHING: Keys = 0u;
const KEYS = 1u;

fn keys_of(x: u32) -> Keys {
    let size = x & 0x7fffffffu;
    if (size >= 0x7f800000u) {
        return select(0u, size, POISONS);
    }
    return select(x, 0u, x != size);
}

fn range_of(found: Keys) -> Range {
    return Range(0u, found, found >= 0x7f800000u);
}

fn key(found: Keys, i: u32) -> u32 {
    return found;
}

fn keys(first: u32, second: u32) -> Keys {
    return first;
}
