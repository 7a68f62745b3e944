// Scales that are powers of two, as floats (docs/numerics.md, 3.4).
// needs: choose/chosen, choose/power/{power}, choose/zero/{zero}, choose/offset/{offset}, choose/outer/none
fn choose(r: Range, outer: u32) -> Chosen {
    let scale = power_scale_of(r);
    return Chosen(scale, choose_zero(r, scale, outer), choose_offset(r, scale, outer));
}

fn power_scale_of(r: Range) -> u32 {
    let a = numerator(r);
    if (is_without_power(a)) {
        return 0x00800000u;
    }
    return power_of_two(clamp(power_of(a), -126, 127));
}
