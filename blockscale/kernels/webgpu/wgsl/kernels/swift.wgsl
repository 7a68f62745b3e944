// Blocks that follow one another and are all full, in one pass that keeps much of memory under way.
// A team of TEAM invocations takes BLOCKS blocks, of each UNITS units of 16 bytes an invocation; all
// of them are asked for before the first is used. What needs exact arithmetic of integers is left
// for the end (swift/rare).
// needs: grid, swift/load/{load}, swift/find/{swift_find}, swift/choose/{swift}, swift/result/{result}, swift/rare
const TEAMS: u32 = GROUP / TEAM;
const BLOCK_UNITS: u32 = TEAM * UNITS;

@compute @workgroup_size(GROUP)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>,
        @builtin(local_invocation_index) lane: u32) {
    let member = lane % TEAM;
    let first = (group_number(group, groups) * TEAMS + lane / TEAM) * BLOCKS;
    var held: array<vec4<u32>, UNITS * BLOCKS>;
    for (var b = 0u; b < BLOCKS; b++) {
        let start = min(first + b, sizes.blocks - 1u) * BLOCK_UNITS + member;
        for (var u = 0u; u < UNITS; u++) {
            held[b * UNITS + u] = x[start + u * TEAM];
        }
    }
    var rare = 0u;
    for (var b = 0u; b < BLOCKS; b++) {
        var found = NOTHING;
        for (var u = 0u; u < UNITS; u++) {
            for (var j = 0u; j < FOURS; j++) {
                found = with_four(found, four_of(held[b * UNITS + u], j));
            }
        }
        found = team_max(found, lane);
        let block = first + b;
        let there = block < sizes.blocks;
        let s = swift_step(keys_found(found), sizes.first / sizes.block + block);
        keep(s, block, member, b, there);
        rare |= select(0u, 1u << b, there && !s.sure);
        for (var u = 0u; u < UNITS; u++) {
            put_unit(block * BLOCK_UNITS + u * TEAM + member, member, held[b * UNITS + u], s,
                     there && s.sure);
        }
    }
    while (rare != 0u) {
        take_rare(first + firstTrailingBit(rare), member);
        rare &= rare - 1u;
    }
}
