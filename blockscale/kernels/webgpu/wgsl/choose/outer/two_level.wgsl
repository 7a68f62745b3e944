// The outer scale, from the largest numerator of the blocks that share it (docs/numerics.md, 3.5).
// needs: choose/outer/{joined}, bits/storable
fn outer_of(largest: u32) -> u32 {
    return storable(outer_ratio(largest & 0x7fffffffu), OUTER_STORAGE);
}
