// Ties between integers. What 2.5 ulps are two units of beside QUICK_CENTER at most.
// needs: hardware/{hardware}, quick/integer, swift/tie/settled
fn is_near_a_tie(near: vec4<u32>, s: Step) -> bool {
    let rest = four_sums(near, vec4(QUICK_TIE)) & vec4((1u << QUICK_FRACTION) - 1u);
    return smallest_of_four(rest) <= 4u;
}

fn settled4(x: vec4<u32>, near: vec4<u32>, s: Step) -> vec4<u32> {
    let magic = min(0x4b400000u, s.bits | INFINITY); // as in swift/code/integer
    let whole = four_sums(four_sums(near, vec4(magic)), vec4(SIGN | magic));
    let up = four_sums(near, whole ^ vec4(SIGN)) < vec4(SIGN);
    let ties = four_sums(whole, select(vec4(0xbf000000u), vec4(0x3f000000u), up));
    return settled(x, near, ties, vec4(0x3e800000u), s);
}

// Whether what settles a tie is normal.
fn settles(step: u32) -> bool {
    return true;
}
