// By every rule: as choose/{rule} has it.
// needs: swift/choose/swift, choose/{rule}, step/{step}, given/outer_{given_outer}, zero/{zero}
fn swift_step(found: Keys, block: u32) -> Swift {
    let range = range_of(found);
    let outer = given_outer(block);
    let chosen = choose(range, outer);
    var s = step_of(chosen.scale, chosen.zero, outer, chosen.offset);
    if (is_zero(found)) {
        s = for_zeros(s);
    }
    let sure = s.ordinary && !range.poisoned && fits_zero(s);
    return Swift(s, chosen.scale, chosen.zero, sure);
}
