// SPDX-License-Identifier: BSD-3-Clause
// Blocks of a matrix, one an invocation, for pages in a browser (reporting/browser).

//# box
// Blocks of a matrix, one an invocation: [block_rows, block_columns] elements each, fewer at the ends.
// Made for pages, whose tensors are small: nothing here is fast, and a reader sees what a block is.
@group(0) @binding(numbers) var<storage, read> numbers: array<u32>;

struct Box { top: u32, bottom: u32, left: u32, right: u32 };

fn box_of(block: u32) -> Box {
    let top = block / sizes.across * sizes.block_rows;
    let left = block % sizes.across * sizes.block_columns;
    let bottom = min(top + sizes.block_rows, sizes.rows);
    let right = min(left + sizes.block_columns, sizes.columns);
    return Box(top, bottom, left, right);
}

fn number_at(row: u32, column: u32) -> u32 {
    return numbers[row * sizes.columns + column];
}

fn block_of(element: u32) -> u32 {
    let row = element / sizes.columns / sizes.block_rows;
    return row * sizes.across + element % sizes.columns / sizes.block_columns;
}

//# mean
// The mean of magnitudes, as a sum of integers that no order changes (docs/numerics.md, 3.2).
// needs: boxes/box, choose/{rule}, arithmetic/{arithmetic}/multiply, bits/parts

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

//# range
// The smallest and the largest finite number of a block (docs/numerics.md, 3.1).
// needs: boxes/box, choose/{rule}, bits/parts

fn out_of_order(key: u32) -> u32 {
    return select(~key, key ^ SIGN, key >= SIGN);
}

fn range_of(block: u32) -> Range {
    let box = box_of(block);
    var low = 0xffffffffu;
    var high = 0u;
    var poisoned = false;
    for (var row = box.top; row < box.bottom; row++) {
        for (var column = box.left; column < box.right; column++) {
            let x = number_at(row, column);
            if (is_finite(x)) {
                low = min(low, in_order(x));
                high = max(high, in_order(x));
            } else {
                poisoned = true;
            }
        }
    }
    if (low > high) { // no finite number
        low = in_order(0u);
        high = low;
    }
    if (!BARE) { // ranges hold 0, but for formats with offsets
        low = min(low, in_order(0u));
        high = max(high, in_order(0u));
    }
    return Range(out_of_order(low), out_of_order(high), poisoned);
}
