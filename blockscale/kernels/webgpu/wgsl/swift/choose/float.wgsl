// Scales that are float32, of blocks whose extremes and scale are ordinary: fl(a / L) from a product
// and an integer remainder. The step's inverse is the device's own division, which may be 2.5 ulps
// off: swift/near/quotient knows.
// needs: swift/choose/swift, swift/choose/spread_{numerator}, swift/choose/zero_{zero}, choose/{rule}, hardware/{hardware}, bits/corrected, swift/tie/{tie}
fn swift_step(found: Keys, block: u32) -> Swift {
    let spread = spread_of(found);
    let near = product(spread, INVERSE_LEVELS);
    let scale = select(corrected(spread, near, LEVELS), SMALLEST_NORMAL, is_zero(found));
    let inverse = ratio(ONE, scale);
    let zero = zero_found(found, scale, inverse);
    var s = Step(scale, inverse, zero, 0u, true);
    if (is_zero(found)) {
        s = for_zeros(s);
    }
    let ordinary = ends_are_ordinary(found) && is_ordinary(spread) && is_ordinary(scale);
    return Swift(s, scale, zero, is_zero(found) || (ordinary && settles(scale)));
}
