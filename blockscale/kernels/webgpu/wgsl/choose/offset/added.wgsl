// fl(lo - fl(step * l)), l the smallest value of the element (docs/numerics.md, 3.8).
// needs: statistics/range, step/{step}, bits/add, bits/quick, bits/storable
fn choose_offset(r: Range, scale: u32, outer: u32) -> u32 {
    let s = step_of(scale, 0, outer, 0u);
    let found = add(subtract(r.low, quick_multiply(s.bits, LOWEST)), 0u); // -0 becomes 0
    return storable_signed(select(found, 0u, is_nan(found)), OFFSET_STORAGE);
}
