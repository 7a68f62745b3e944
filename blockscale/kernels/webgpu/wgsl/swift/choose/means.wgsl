// Scales that are chosen from means; of teams beyond a subgroup's reach by the first neighbours.
// needs: swift/choose/swift, swift/mean/sums, choose/{rule}, step/{step}, swift/tie/{tie}
var<workgroup> chosen_of_teams: array<Swift, GROUP / TEAM>;

fn swift_step(found: u32, block: u32) -> Swift {
    var told: Swift;
    if (own % TEAM < REACH) {
        told = from_mean(found);
    }
    if (TEAM > REACH) {
        workgroupBarrier();
        if (own % TEAM == 0u) {
            chosen_of_teams[own / TEAM] = told;
        }
        workgroupBarrier();
        told = chosen_of_teams[own / TEAM];
    }
    return told;
}

fn from_mean(found: u32) -> Swift {
    let chosen = choose(Range(mean | SIGN, mean, false), 0u);
    var s = step_of(chosen.scale, chosen.zero, 0u, chosen.offset);
    let sure = s.ordinary && is_ordinary(found) && found >= 0x12800000u; // 2^-90
    let zeros = is_zero(found) && BITS > 1u; // +1 and -1 are no zeros
    if (zeros) {
        s = for_zeros(s);
    }
    return Swift(s, chosen.scale, chosen.zero, sure || zeros);
}
