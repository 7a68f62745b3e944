// What an invocation has of a block: QUADS fours, which lie in chunks of CHUNK elements, TEAM
// chunks apart.
// needs: load/{load}, once/{keeping}
struct Mine {
    start: u32,  // of the block, in what is bound
    length: u32, // of the block; 0 where there is none
    member: u32, // of its team
}

fn place_of(mine: Mine, quad: u32) -> u32 {
    return (quad / (CHUNK / 4u) * TEAM + mine.member) * CHUNK + quad % (CHUNK / 4u) * 4u;
}

fn quad_at(mine: Mine, place: u32) -> u32 {
    return (mine.start + place) / 4u;
}
