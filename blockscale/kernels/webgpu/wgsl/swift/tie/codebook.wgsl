// Thresholds of a codebook, of which a number is sure from seven units of its last place on: six of
// them are as many as a product is off at most.
// needs: swift/code/codebook, bits/corrected, bits/reciprocal
fn is_near_a_tie(near: vec4<u32>, s: Step) -> bool {
    return smallest_of_four(near - thresholds_at(cells_of(near)) + vec4(8u)) <= 16u;
}

fn settled4(x: vec4<u32>, near: vec4<u32>, s: Step) -> vec4<u32> {
    let inverse = reciprocal(s.bits);
    return vec4(one_quotient(x.x, s, inverse), one_quotient(x.y, s, inverse),
                one_quotient(x.z, s, inverse), one_quotient(x.w, s, inverse));
}

// fl(x / step), but for numbers of which that is far below a half.
fn one_quotient(x: u32, s: Step, inverse: u32) -> u32 {
    let near = product(x, inverse);
    return select(near, corrected(x, near, s.bits), is_correctable(x, near));
}

fn settles(step: u32) -> bool {
    return true;
}
