// The numbers of a block, one at a time.
// needs: load/{load}, blocks/elements_of_{blocks}
struct Numbers {
    four: vec4<u32>, // of which so many exist, here the first or none
    count: u32,
}

fn numbers_at(block: u32, unit: u32) -> Numbers {
    let i = element_at(block, unit) - sizes.first;
    if (i >= sizes.bound) {
        return Numbers(vec4(0u), 0u);
    }
    return Numbers(vec4(load1(i), 0u, 0u, 0u), 1u);
}

fn keys_at(block: u32, unit: u32) -> Keys {
    let read = numbers_at(block, unit);
    if (read.count == 0u) {
        return NOTHING;
    }
    return keys_of(read.four.x);
}

fn units() -> u32 {
    return block_size();
}
