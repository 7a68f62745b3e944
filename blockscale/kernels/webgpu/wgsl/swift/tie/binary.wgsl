// Where a number of steps is 0, the sign says nothing of what was flushed to it.
// needs: hardware/{hardware}, step/step, bits/divide
fn is_near_a_tie(near: vec4<u32>, s: Step) -> bool {
    return smallest_of_four(near << vec4(1u)) == 0u;
}

fn settled4(x: vec4<u32>, near: vec4<u32>, s: Step) -> vec4<u32> {
    var found = near;
    for (var i = 0u; i < 4u; i++) {
        if ((near[i] << 1u) == 0u && (x[i] << 1u) != 0u) {
            found[i] = divide(x[i], s.bits);
        }
    }
    return found;
}

fn settles(step: u32) -> bool {
    return true;
}
