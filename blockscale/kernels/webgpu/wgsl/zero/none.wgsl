// Formats without a zero point.
// needs: step/step
// Whether numbers of steps beyond the codes' range saturate, and them with a zero point that does.
fn fits_zero(s: Step) -> bool {
    return true;
}

const HAS_ZERO: bool = false;

// A zero point that fits.
fn zero_of(s: Step) -> i32 {
    return 0;
}

fn moved(y: u32, s: Step) -> u32 {
    return y;
}

fn placed(steps: i32, y: u32, s: Step) -> i32 {
    return steps;
}

fn unplaced(code: i32, s: Step) -> u32 {
    return bitcast<u32>(f32(code));
}
