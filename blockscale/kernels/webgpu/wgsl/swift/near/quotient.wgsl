// Numbers in steps that are floats: products with an inverse that is at most 2.5 ulps off, which are
// two units beside QUICK_CENTER at most; exact quotients where one is so near a tie.
// needs: hardware/{hardware}, step/step, quick/integer, bits/corrected, bits/reciprocal
fn near4(x: vec4<u32>, s: Step) -> vec4<u32> {
    var near = four_products(x, vec4(s.inverse));
    let rest = four_sums(near, vec4(QUICK_TIE)) & vec4((1u << QUICK_FRACTION) - 1u);
    if (smallest_of_four(rest) <= 4u) {
        let inverse = reciprocal(s.bits);
        near = vec4(one_quotient(x.x, s, inverse), one_quotient(x.y, s, inverse),
                    one_quotient(x.z, s, inverse), one_quotient(x.w, s, inverse));
    }
    return near;
}

// fl(x / step), but for numbers of which that is far below a half.
fn one_quotient(x: u32, s: Step, inverse: u32) -> u32 {
    let near = product(x, inverse);
    return select(near, corrected(x, near, s.bits), is_correctable(x, near));
}
