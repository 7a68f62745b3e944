// Formats without a zero point.
// needs: step/step
fn moved(y: u32, s: Step) -> u32 {
    return y;
}

fn placed(steps: i32, y: u32, s: Step) -> i32 {
    return steps;
}

fn unplaced(code: i32, s: Step) -> u32 {
    return bitcast<u32>(f32(code));
}
