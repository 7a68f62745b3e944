// Integer zero points, which are added after rounding (docs/numerics.md, 4 and 5).
// needs: step/step, bits/add, bits/integer
const LARGE_ZERO: u32 = 1u << 22u; // below it, nothing of a sum with a code is rounded

// Whether numbers of steps beyond the codes' range saturate, and them with a zero point that does.
fn fits_zero(s: Step) -> bool {
    return s.zero >= LOW && s.zero <= HIGH;
}

const HAS_ZERO: bool = true;

// A zero point that fits.
fn zero_of(s: Step) -> i32 {
    return s.zero;
}

fn moved(y: u32, s: Step) -> u32 {
    return y;
}

// steps: R(y), at most 2^23 in magnitude
fn placed(steps: i32, y: u32, s: Step) -> i32 {
    if (u32(abs(s.zero)) < LARGE_ZERO) {
        return steps + s.zero;
    }
    let large = (y & MAGNITUDE) >= 0x4b000000u && !is_nan(y); // from 2^23 on y is whole
    return to_integer(add(select(to_float(steps), y, large), to_float(s.zero)), 1 << 23u);
}

// fl(code - zero)
fn unplaced(code: i32, s: Step) -> u32 {
    if (u32(abs(s.zero)) < LARGE_ZERO) {
        return bitcast<u32>(f32(code - s.zero));
    }
    return subtract(to_float(code), to_float(s.zero));
}
