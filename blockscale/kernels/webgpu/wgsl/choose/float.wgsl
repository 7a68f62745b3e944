// Scales that are floats (docs/numerics.md, 3.3).
// needs: choose/chosen, choose/ratio/{ratio}, bits/storable, choose/zero/{zero}, choose/offset/{offset}, choose/outer/none
fn choose(r: Range, outer: u32) -> Chosen {
    let wanted = ratio_of(r);
    let negative = select(0u, wanted & 0x80000000u, (wanted & 0x7fffffffu) != 0u);
    let scale = storable(wanted & 0x7fffffffu, SCALE_STORAGE) | negative;
    return Chosen(scale, choose_zero(r, scale, outer), choose_offset(r, scale, outer));
}
