// Blocks that follow one another: their scales are chosen and their codes or values written in one
// pass over memory. A team of TEAM invocations takes a block; TEAMS of them are a workgroup, whose
// first invocations choose the scales of all.
// needs: grid, choose/{rule}, step/{step}, once/{finding}, once/scales_{scales}, given/outer_{given_outer}, result/{result}
var<workgroup> steps: array<Step, TEAMS>;

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>,
        @builtin(local_invocation_index) lane: u32) {
    let first = group_number(group, groups) * TEAMS; // block, of those that are bound
    let start = (first + lane / TEAM) * sizes.block;
    let there = first + lane / TEAM < sizes.blocks;
    let length = select(0u, min(sizes.block, sizes.bound - start), there);
    let mine = Mine(start, length, lane % TEAM);
    tell(mine, lane);
    workgroupBarrier();
    if (lane < TEAMS && first + lane < sizes.blocks) {
        let block = sizes.first / sizes.block + first + lane;
        let outer = given_outer(block);
        let chosen = choose(range_of_team(lane), outer);
        steps[lane] = step_of(chosen.scale, chosen.zero, outer, chosen.offset);
        keep(lane, chosen);
    }
    workgroupBarrier();
    if (first < sizes.blocks) {
        keep_words(lane, sizes.first / sizes.block + first, min(TEAMS, sizes.blocks - first));
    }
    write(mine, steps[lane / TEAM]);
}

fn write(mine: Mine, s: Step) {
    for (var chunk = 0u; chunk < QUADS / (CHUNK / 4u); chunk++) {
        let place = place_of(mine, chunk * (CHUNK / 4u));
        if (place >= mine.length) {
            return;
        }
        var written = written_from(mine.start + place);
        for (var j = 0u; j < CHUNK / 4u; j++) {
            let i = mine.start + place + 4u * j;
            let x = read_again(chunk * (CHUNK / 4u) + j, i / 4u);
            written = put4(written, i, made4(x, s, i));
        }
    }
}
