// The mean of magnitudes, as a sum of integers that no order changes (docs/numerics.md, 3.2).
// needs: boxes/box, choose/{rule}, bits/multiply, bits/parts

// The sum of floor(|x| / 2^(power - 157)) over the finite numbers above `least`, and their count.
// power: the exponent field of the largest, 1 for a subnormal
fn sum_above(box: Box, least: u32, power: u32, strictly: bool) -> vec3<u32> {
    var sum = vec3<u32>(0u);
    for (var row = box.top; row < box.bottom; row++) {
        for (var column = box.left; column < box.right; column++) {
            let x = number_at(row, column) & MAGNITUDE;
            if (!is_finite(x) || (strictly && x <= least)) {
                continue;
            }
            let exponent = max(x >> 23u, 1u);
            let mantissa = (x & 0x7fffffu) | select(0u, 0x800000u, (x >> 23u) > 0u);
            let shift = i32(exponent) + 7 - i32(power); // at most 7
            var term = 0u;
            if (shift >= 0) {
                term = mantissa << u32(shift);
            } else if (shift > -32) {
                term = mantissa >> u32(-shift);
            }
            let before = sum.x;
            sum.x += term;
            sum.y += u32(sum.x < before);
            sum.z += 1u;
        }
    }
    return sum;
}

fn range_of(block: u32) -> Range {
    let box = box_of(block);
    var largest = 0u;
    var poisoned = false;
    for (var row = box.top; row < box.bottom; row++) {
        for (var column = box.left; column < box.right; column++) {
            let x = number_at(row, column) & MAGNITUDE;
            if (is_finite(x)) {
                largest = max(largest, x);
            } else {
                poisoned = true;
            }
        }
    }
    if (largest == 0u) {
        return Range(0u, 0u, poisoned);
    }
    let power = max(largest >> 23u, 1u);
    let all = sum_above(box, 0u, power, false);
    var mean = mean_of(all.xy, all.z, power);
    if (ABOVE) {
        let above = sum_above(box, multiply(0x3f333333u, mean), power, true);
        mean = 0u;
        if (above.z > 0u) {
            mean = mean_of(above.xy, above.z, power);
        }
    }
    return Range(mean | SIGN, mean, poisoned);
}
