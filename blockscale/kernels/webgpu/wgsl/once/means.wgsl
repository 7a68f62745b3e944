// Means of a workgroup's blocks, of all magnitudes or of those above 0.7 of their mean (numerics.md,
// 3.2).
// needs: once/look, statistics/sum, choose/{rule}, bits/multiply
var<workgroup> sums_of_teams: array<Sum, TEAMS>;

fn sum_of(mine: Mine, lane: u32, field: u32, least: u32, strictly: bool) -> Sum {
    var sum = Sum(0u, 0u, 0u);
    for (var quad = 0u; quad < QUADS; quad++) {
        let place = place_of(mine, quad);
        if (place < mine.length) {
            let four = read_again(quad, quad_at(mine, place));
            for (var i = 0u; i < min(mine.length - place, 4u); i++) {
                sum = both(sum, counted(four[i], field, least, strictly));
            }
        }
    }
    return team_sum(sum, lane);
}

fn mean_of_sum(sum: Sum, field: u32) -> u32 {
    return mean_of(vec2(sum.low, sum.high), sum.count, field);
}

fn tell(mine: Mine, lane: u32) {
    let found = look(mine, lane);
    let field = field_of(found);
    var sum = sum_of(mine, lane, field, 0u, false);
    if (ABOVE) {
        sum = sum_of(mine, lane, field, multiply(0x3f333333u, mean_of_sum(sum, field)), true);
    }
    if (mine.member == 0u) {
        found_of_teams[lane / TEAM] = found;
        sums_of_teams[lane / TEAM] = sum;
    }
}

fn range_of_team(team: u32) -> Range {
    let largest = found_of_teams[team];
    let mean = mean_of_sum(sums_of_teams[team], field_of(largest));
    return Range(mean | 0x80000000u, mean, largest >= 0x7f800000u);
}
