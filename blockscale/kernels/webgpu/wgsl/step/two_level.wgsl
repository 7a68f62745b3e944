// Steps of scales that are codes with a scale of their own, the outer one (numerics.md, 1.3).
// needs: inner/{inner}, inner/joined/{joined}, step/prepare/{how}, step/levels/{levels}
fn step_of(scale: u32, zero: i32, outer: u32, offset: u32) -> Step {
    let value = inner_value(scale);
    return with_levels(prepared(joined(value, outer), zero, offset), value, outer);
}
