// Zero points that are floats, which are added before rounding (docs/numerics.md, 4 and 5).
// needs: step/step, bits/add, bits/integer
// Whether numbers of steps beyond the codes' range saturate, and them with a zero point that does.
fn fits_zero(s: Step) -> bool {
    return false;
}

const HAS_ZERO: bool = true;

// A zero point that fits.
fn zero_of(s: Step) -> i32 {
    return 0;
}

fn moved(y: u32, s: Step) -> u32 {
    return add(select(y, 0u, is_nan(y)), bitcast<u32>(s.zero));
}

fn placed(steps: i32, y: u32, s: Step) -> i32 {
    return steps;
}

fn unplaced(code: i32, s: Step) -> u32 {
    return subtract(to_float(code), bitcast<u32>(s.zero));
}
