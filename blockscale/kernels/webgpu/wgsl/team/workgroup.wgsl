// Teams of TEAM neighbours, who meet in the workgroup's memory; all of them get the result.
var<workgroup> keys_of_lanes: array<Keys, 256>;
var<workgroup> sums_of_lanes: array<Sum, 256>;

fn team_max(mine: Keys, lane: u32) -> Keys {
    var found = mine;
    for (var side = 1u; side < TEAM; side *= 2u) {
        keys_of_lanes[lane] = found;
        workgroupBarrier();
        found = max(found, keys_of_lanes[lane ^ side]);
        workgroupBarrier();
    }
    return found;
}

fn team_sum(mine: Sum, lane: u32) -> Sum {
    var sum = mine;
    for (var side = 1u; side < TEAM; side *= 2u) {
        sums_of_lanes[lane] = sum;
        workgroupBarrier();
        sum = both(sum, sums_of_lanes[lane ^ side]);
        workgroupBarrier();
    }
    return sum;
}
