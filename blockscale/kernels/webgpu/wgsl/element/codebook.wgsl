// Tables of at most 16 values (docs/numerics.md, section 4), by comparisons and selections alone:
// devices keep arrays that are indexed at run time in slow memory. Thresholds are in the order of
// in_order; the missing ones are never reached.
// needs: bits/parts, step/step
fn encode(y: u32, s: Step, word: u32) -> u32 {
    let place = threshold_place(in_order(select(y, 0u, is_nan(y))));
    return (select(ORDER[0], ORDER[1], place >= 8u) >> (4u * (place & 7u))) & 15u;
}

// How many thresholds are below: a search by halves.
fn threshold_place(y: u32) -> u32 {
    let a = y > THRESHOLDS[7];
    let b = y > select(THRESHOLDS[3], THRESHOLDS[11], a);
    let c = y > select(select(THRESHOLDS[1], THRESHOLDS[5], b),
                       select(THRESHOLDS[9], THRESHOLDS[13], b), a);
    let d = y > select(
        select(select(THRESHOLDS[0], THRESHOLDS[2], c), select(THRESHOLDS[4], THRESHOLDS[6], c), b),
        select(select(THRESHOLDS[8], THRESHOLDS[10], c),
               select(THRESHOLDS[12], THRESHOLDS[14], c), b), a);
    return (u32(a) << 3u) | (u32(b) << 2u) | (u32(c) << 1u) | u32(d);
}

// Values are turned by these bits: Mesa 22's compiler takes 0 and -0 for one where it selects.
const TURNED: u32 = 0x01010101u;

fn decode(code: u32, s: Step) -> u32 {
    let masked = code & ((1u << BITS) - 1u);
    let a = (masked & 8u) != 0u;
    let b = (masked & 4u) != 0u;
    let c = (masked & 2u) != 0u;
    let d = (masked & 1u) != 0u;
    let first = select(
        select(select(VALUES[0], VALUES[1], d), select(VALUES[2], VALUES[3], d), c),
        select(select(VALUES[4], VALUES[5], d), select(VALUES[6], VALUES[7], d), c), b);
    let second = select(
        select(select(VALUES[8], VALUES[9], d), select(VALUES[10], VALUES[11], d), c),
        select(select(VALUES[12], VALUES[13], d), select(VALUES[14], VALUES[15], d), c), b);
    return select(first, second, a) ^ TURNED;
}
