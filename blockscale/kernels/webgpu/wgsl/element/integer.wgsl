// Integers and ternary numbers: the code is the value (docs/numerics.md, section 4).
// needs: bits/parts, round/{rounding}, zero/{zero}
const MASK: u32 = 0xffffffffu >> (32u - BITS);

fn encode(y: u32, s: Step, word: u32) -> u32 {
    let t = moved(y, s);
    let size = min(t & MAGNITUDE, 0x4b000000u); // beyond 2^23 all saturate
    let whole = i32(rounded(size, 127u, t >= SIGN, word));
    let steps = select(select(whole, -whole, t >= SIGN), 0, is_nan(t));
    return u32(clamp(placed(steps, t, s), LOW, HIGH)) & MASK;
}

fn decode(code: u32, s: Step) -> u32 {
    let value = select(i32(code & MASK), i32(code << (32u - BITS)) >> (32u - BITS), SIGNED);
    return unplaced(value, s);
}
