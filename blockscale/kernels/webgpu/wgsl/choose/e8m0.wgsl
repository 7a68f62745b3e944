// Scales that are the byte of a power of two (docs/numerics.md, 3.4).
// needs: choose/chosen, choose/power/{power}, choose/zero/{zero}, choose/offset/{offset}, choose/outer/none
fn choose(r: Range, outer: u32) -> Chosen {
    let scale = byte_of(r);
    return Chosen(scale, choose_zero(r, scale, outer), choose_offset(r, scale, outer));
}

fn byte_of(r: Range) -> u32 {
    let a = numerator(r);
    if (r.poisoned) {
        return 255u;
    }
    if (is_without_power(a)) {
        return 0u;
    }
    return u32(clamp(power_of(a) + i32(FRACTION_BITS), -127, 127) + 127);
}
