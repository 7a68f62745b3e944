// needs: choose/levels, choose/chosen
fn ratio_of(r: Range) -> u32 {
    return per_level(numerator(r));
}
