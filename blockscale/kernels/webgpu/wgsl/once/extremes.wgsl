// Ranges of a workgroup's blocks, from their extremes.
// needs: once/look
fn tell(mine: Mine, lane: u32) {
    let found = look(mine, lane);
    if (mine.member == 0u) {
        found_of_teams[lane / TEAM] = found;
    }
}

fn range_of_team(team: u32) -> Range {
    return range_of(found_of_teams[team]);
}
