// Scales that are minifloats under one of float32, of blocks of ordinary numbers: fl(a / L) from a
// product and an integer remainder, in outer scales by the device's own reciprocal, which with the
// product is six units of the last place off at most, unless that comes near a tie of two codes. The
// step's inverse is the device's own, too.
// needs: swift/choose/swift, swift/choose/spread_{numerator}, given/outer_{given_outer}, choose/{rule}, hardware/{hardware}, bits/corrected, inner/minifloat, swift/tie/{tie}
const INNER_FRACTION: u32 = 23u - INNER_MBITS; // bits of a float32 that codes leave out

fn swift_step(found: Keys, block: u32) -> Swift {
    let outer = given_outer(block);
    let largest = spread_of(found);
    let wanted = corrected(largest, product(largest, INVERSE_LEVELS), LEVELS);
    let units = product(wanted, ratio(ONE, outer));
    let bounded = select(clamp(units, INNER_SMALLEST_NORMAL, INNER_LARGEST), INNER_SMALLEST_NORMAL,
                         is_zero(found));
    let tie = (units + 8u + (1u << (INNER_FRACTION - 1u))) & ((1u << INNER_FRACTION) - 1u);
    let sure = is_zero(found) || (is_ordinary(largest) && is_ordinary(wanted)
                                  && is_ordinary(units) && tie > 16u);
    var code = inner_code(bounded);
    if (!sure || !is_ordinary(outer)) { // scales are kept, whatever becomes of their blocks
        code = choose(range_of(found), outer).scale;
    }
    let scale = product(inner_value(code), outer);
    var s = Step(scale, ratio(ONE, scale), 0, 0u, true);
    if (is_zero(found)) {
        s = for_zeros(s);
    }
    let right = sure && is_ordinary(scale) && settles(scale);
    return Swift(s, code, 0, is_ordinary(outer) && (is_zero(found) || right));
}
