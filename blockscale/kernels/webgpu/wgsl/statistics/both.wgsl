// The largest number of a block and its smallest one negated, both at least 0. What is not finite:
// as in statistics/magnitude.
// needs: statistics/range
alias Keys = vec2<u32>;
const NOTHING: Keys = vec2<u32>(0u, 0u);
const KEYS = 2u;

fn keys_of(x: u32) -> Keys {
    let size = x & 0x7fffffffu;
    let kept = select(size, 0u, !POISONS && size >= 0x7f800000u);
    return select(vec2(0u, kept), vec2(kept, 0u), x == size);
}

fn range_of(found: Keys) -> Range {
    let low = select(found.y | 0x80000000u, 0u, found.y == 0u);
    return Range(low, found.x, max(found.x, found.y) >= 0x7f800000u);
}

fn key(found: Keys, i: u32) -> u32 {
    return found[i];
}

fn keys(first: u32, second: u32) -> Keys {
    return vec2(first, second);
}
