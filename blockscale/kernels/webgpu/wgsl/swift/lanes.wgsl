// What an invocation has of a block: units that are TEAM apart, or (TOGETHER) neighbours.
// needs: swift/load/{load}, swift/place/{place}
const TEAMS: u32 = GROUP / TEAM;
const BLOCK_UNITS: u32 = TEAM * UNITS;
const LANE_FOURS: u32 = UNITS * FOURS;
alias Near = array<vec4<u32>, LANE_FOURS>; // of its numbers, in steps

fn unit_of(u: u32, member: u32) -> u32 {
    return select(u * TEAM + member, member * UNITS + u, TOGETHER);
}

// The place in memory of the i-th element of a block.
fn element_of(block: u32, i: u32) -> u32 {
    return place_of(block, i / (4u * FOURS)) * 4u * FOURS + i % (4u * FOURS);
}
