// clamp(qmin - R(lo / step), qmin, qmax).
// needs: hardware/{hardware}, step/step, swift/tie/integer
fn zero_found(found: Keys, scale: u32, inverse: u32) -> i32 {
    var near = vec4(min(product(found.y, inverse), bitcast<u32>(f32(HIGH - LOW + 1))));
    let s = Step(scale, inverse, 0, 0u, true);
    if (is_near_a_tie(near, s)) {
        near = settled4(vec4(found.y), near, s);
    }
    let steps = i32(sum(near.x, 0x4b400000u) & 0x3fffffu);
    return min(LOW + steps, HIGH);
}
