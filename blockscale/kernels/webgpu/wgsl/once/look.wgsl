// The extremes of an invocation's block, found by its team.
// needs: statistics/{statistic}, statistics/sum, team/{team}, once/mine
var<workgroup> found_of_teams: array<Keys, TEAMS>;

fn look(mine: Mine, lane: u32) -> Keys {
    var found = NOTHING;
    for (var quad = 0u; quad < QUADS; quad++) {
        let place = place_of(mine, quad);
        if (place < mine.length) {
            let four = read_first(quad, quad_at(mine, place));
            let last = mine.length - place;
            let y = select(four.x, four.y, last > 1u);
            let z = select(four.x, four.z, last > 2u);
            let w = select(four.x, four.w, last > 3u);
            found = max(found, max(max(keys_of(four.x), keys_of(y)), max(keys_of(z), keys_of(w))));
        }
    }
    return team_max(found, lane);
}

