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
