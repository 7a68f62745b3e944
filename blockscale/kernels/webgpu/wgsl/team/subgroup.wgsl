// Teams of TEAM neighbours within a subgroup; all of them get the result. Needs the feature
// "subgroup"; naga knows it without "enable subgroups;", which browsers ask for.
fn team_max(mine: Keys, lane: u32) -> Keys {
    var found = mine;
    for (var side = 1u; side < TEAM; side *= 2u) {
        found = max(found, subgroupShuffleXor(found, side));
    }
    return found;
}

fn team_sum(mine: Sum, lane: u32) -> Sum {
    var sum = mine;
    for (var side = 1u; side < TEAM; side *= 2u) {
        sum = both(sum, Sum(subgroupShuffleXor(sum.low, side), subgroupShuffleXor(sum.high, side),
                            subgroupShuffleXor(sum.count, side)));
    }
    return sum;
}
