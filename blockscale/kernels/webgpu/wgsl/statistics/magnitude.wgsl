// The largest magnitude of a block, as the bits of a float32, which order as numbers do. Of formats
// that poison, a NaN or an infinity is larger than all numbers; others leave them out.
// needs: statistics/range
alias Keys = u32;
const NOTHING: Keys = 0u;
const KEYS = 1u;

fn keys_of(x: u32) -> Keys {
    let size = x & 0x7fffffffu;
    return select(size, 0u, !POISONS && size >= 0x7f800000u);
}

fn range_of(found: Keys) -> Range {
    return Range(select(found | 0x80000000u, 0u, found == 0u), found, found >= 0x7f800000u);
}

fn key(found: Keys, i: u32) -> u32 {
    return found;
}

fn keys(first: u32, second: u32) -> Keys {
    return first;
}
