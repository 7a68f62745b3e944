// Blocks whose numbers ask for exact arithmetic, in loops that are not unrolled.
// needs: swift/lanes, choose/{rule}, step/{step}, given/outer_{given_outer}, code/{how}, given/{drawn}, swift/range/{range}, swift/rare/{rare}
fn take_rare(block: u32, member: u32) {
    let number = sizes.first / sizes.block + block;
    let outer = given_outer(number);
    let chosen = choose(exact_range(block), outer);
    let s = step_of(chosen.scale, chosen.zero, outer, chosen.offset);
    write_rare(block, member, chosen, s);
}

fn number_at(i: u32) -> u32 {
    let unit = x[i / (4u * FOURS)];
    return four_of(unit, i / 4u % FOURS)[i % 4u];
}
