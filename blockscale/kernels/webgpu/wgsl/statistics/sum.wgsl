// Sums of magnitudes as whole numbers, so that they do not depend on their order (numerics.md, 3.2).
struct Sum {
    low: u32, // the sum is low + 2^32 high
    high: u32,
    count: u32, // of numbers that are in it
}

fn both(a: Sum, b: Sum) -> Sum {
    let low = a.low + b.low;
    return Sum(low, a.high + b.high + select(0u, 1u, low < a.low), a.count + b.count);
}

// E(v) of the largest magnitude of a block, at least -126, plus 127: its exponent field but for 0.
fn field_of(largest: u32) -> u32 {
    return max(largest >> 23u, 1u);
}

// floor(|x| 2^(30 - e)), with e = field - 127 at least x's own exponent.
fn units_of(x: u32, field: u32) -> u32 {
    let own = (x >> 23u) & 0xffu;
    let whole = (x & 0x7fffffu) | select(0x800000u, 0u, own == 0u);
    let below = field - max(own, 1u);
    if (below <= 7u) {
        return whole << (7u - below);
    }
    return select(whole >> (below - 7u), 0u, below > 30u);
}

// A number in a sum of those that are finite and larger than `least`.
fn counted(x: u32, field: u32, least: u32, strictly: bool) -> Sum {
    let size = x & 0x7fffffffu;
    if (size >= 0x7f800000u || (strictly && size <= least)) {
        return Sum(0u, 0u, 0u);
    }
    return Sum(units_of(size, field), 0u, 1u);
}
