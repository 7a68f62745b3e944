// Teams of more neighbours than a subgroup surely has, REACH: those meet first, then all of them in
// the workgroup's memory. All get the result.
var<workgroup> keys_of_lanes: array<Keys, GROUP>;

fn team_max(mine: Keys, lane: u32) -> Keys {
    var found = mine;
    for (var side = 1u; side < REACH; side *= 2u) {
        found = max(found, subgroupShuffleXor(found, side));
    }
    for (var side = REACH; side < TEAM; side *= 2u) {
        workgroupBarrier();
        keys_of_lanes[lane] = found;
        workgroupBarrier();
        found = max(found, keys_of_lanes[lane ^ side]);
    }
    return found;
}

var<workgroup> sums_of_lanes: array<Sum, GROUP>;

fn team_sum(mine: Sum, lane: u32) -> Sum {
    var sum = mine;
    for (var side = 1u; side < REACH; side *= 2u) {
        sum = both(sum, Sum(subgroupShuffleXor(sum.low, side), subgroupShuffleXor(sum.high, side),
                            subgroupShuffleXor(sum.count, side)));
    }
    for (var side = REACH; side < TEAM; side *= 2u) {
        workgroupBarrier();
        sums_of_lanes[lane] = sum;
        workgroupBarrier();
        sum = both(sum, sums_of_lanes[lane ^ side]);
    }
    return sum;
}
