// The largest and the smallest number of a block, of which neither need hold 0: for offsets. Keys
// order as the numbers do, and 0 is below all; the second is of the number negated.
// needs: statistics/range
alias Keys = vec2<u32>;
const NOTHING: Keys = vec2<u32>(0u, 0u);
const KEYS = 2u;

fn keys_of(x: u32) -> Keys {
    if (!POISONS && (x & 0x7fffffffu) >= 0x7f800000u) {
        return NOTHING;
    }
    let up = key_of(x);
    return vec2(up, ~up);
}

fn key_of(x: u32) -> u32 {
    return select(x | 0x80000000u, ~x, x >= 0x80000000u);
}

fn number_of(key: u32) -> u32 {
    return select(~key, key & 0x7fffffffu, key >= 0x80000000u);
}

fn range_of(found: Keys) -> Range {
    if (found.x == 0u) {
        return Range(0u, 0u, false);
    }
    let low = number_of(~found.y);
    let high = number_of(found.x);
    // 0 has no sign here: of 0 and -0 in a block either may be found (core/blocks.py)
    return Range(select(low, 0u, low == 0x80000000u), select(high, 0u, high == 0x80000000u),
                 max(found.x, found.y) >= 0xff800000u);
}

fn key(found: Keys, i: u32) -> u32 {
    return found[i];
}

fn keys(first: u32, second: u32) -> Keys {
    return vec2(first, second);
}
