// The largest number and the smallest one negated, both at least 0: of numbers as integers, the
// largest with a sign and the largest without one. What is not finite is larger than all that is.
// needs: statistics/both, statistics/sum, team/{team}
fn with_four(found: Keys, x: vec4<u32>) -> Keys {
    let signed = bitcast<vec4<i32>>(x);
    let high = max(max(signed.x, signed.y), max(signed.z, signed.w));
    let low = max(max(x.x, x.y), max(x.z, x.w));
    return max(found, vec2(u32(max(high, 0)), low));
}

fn keys_found(found: Keys) -> Keys {
    return vec2(found.x, select(0u, found.y & 0x7fffffffu, found.y > 0x80000000u));
}

fn is_zero(found: Keys) -> bool {
    return (found.x | found.y) == 0u;
}
