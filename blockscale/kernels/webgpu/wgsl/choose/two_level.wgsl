// Scales that are codes with a scale of their own (docs/numerics.md, 3.5).
// needs: choose/chosen, choose/levels, choose/outer/two_level, inner/{inner}, inner/joined/{joined}, choose/zero/{zero}, choose/offset/{offset}
fn choose(r: Range, outer: u32) -> Chosen {
    let scale = inner_scale_of(r, outer);
    return Chosen(scale, choose_zero(r, scale, outer), choose_offset(r, scale, outer));
}

fn inner_scale_of(r: Range, outer: u32) -> u32 {
    if (r.poisoned && INNER_NAN_CODE != 0u) {
        return INNER_NAN_CODE;
    }
    let wanted = in_outer(per_level(numerator(r)), outer) & 0x7fffffffu; // no NaN
    return inner_code(clamp(wanted, INNER_SMALLEST_NORMAL, INNER_LARGEST));
}
