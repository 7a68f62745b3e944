// The numbers of a block in fours, for blocks that begin at multiples of four in memory.
// needs: load/{load}, blocks/elements_of_line
struct Numbers {
    four: vec4<u32>, // of which so many exist
    count: u32,
}

fn numbers_at(block: u32, unit: u32) -> Numbers {
    let i = block * sizes.block + 4u * unit - sizes.first;
    if (i >= sizes.bound) {
        return Numbers(vec4(0u), 0u);
    }
    return Numbers(load4(i / 4u), min(sizes.bound - i, 4u));
}

fn keys_at(block: u32, unit: u32) -> Keys {
    let read = numbers_at(block, unit);
    if (read.count == 0u) {
        return NOTHING;
    }
    let x = read.four.x;
    let y = select(x, read.four.y, read.count > 1u);
    let z = select(x, read.four.z, read.count > 2u);
    let w = select(x, read.four.w, read.count > 3u);
    return max(max(keys_of(x), keys_of(y)), max(keys_of(z), keys_of(w)));
}

fn units() -> u32 {
    return (sizes.block + 3u) / 4u;
}
