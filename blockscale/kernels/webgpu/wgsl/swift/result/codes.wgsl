// Packed codes, and scales. Neighbours put their codes together to whole words.
// needs: swift/lanes, swift/draw/{drawn}, swift/code/{family}, swift/scales, swift/words/{words}
const UNIT_BITS: u32 = 4u * FOURS * BITS;

fn put(block: u32, member: u32, near: ptr<function, Near>, s: Swift, wanted: bool) {
    for (var u = 0u; u < UNITS; u++) {
        let place = place_of(block, unit_of(u, member));
        let low = codes_of(coded((*near)[u * FOURS], words_at(place, 0u), s.step), s.step);
        var high = 0u;
        if (FOURS == 2u) {
            let last = (*near)[u * FOURS + FOURS - 1u];
            high = codes_of(coded(last, words_at(place, 1u), s.step), s.step);
        }
        put_unit(place, member, low, high, wanted);
    }
}

fn put_unit(place: u32, member: u32, low: u32, high: u32, wanted: bool) {
    if (UNIT_BITS == 64u) {
        if (wanted) {
            put_two(place, low, high);
        }
        return;
    }
    if (UNIT_BITS == 48u) { // of two neighbours: three words, of which the first has two
        let all = low | (high << 24u);
        let above = high >> 8u;
        let before = subgroupShuffleXor(above, 1u);
        if (wanted && member % 2u == 0u) {
            put_word(place / 2u * 3u, all);
        }
        let next = subgroupShuffleXor(all, 1u);
        if (wanted) {
            if (member % 2u == 0u) {
                put_word(place / 2u * 3u + 1u, above | (next << 16u));
            } else {
                put_word(place / 2u * 3u + 2u, (all >> 16u) | (above << 16u));
            }
        }
        return;
    }
    let all = low | (high << (UNIT_BITS / 2u % 32u));
    if (UNIT_BITS == 24u) { // of four neighbours: three words
        let next = subgroupShuffleDown(all, 1u);
        let at = member % 4u;
        if (wanted && at < 3u) {
            put_word(place / 4u * 3u + at, (all >> (8u * at)) | (next << (24u - 8u * at)));
        }
        return;
    }
    var word = all << (member * UNIT_BITS % 32u);
    for (var side = 1u; side * UNIT_BITS < 32u; side *= 2u) {
        word |= subgroupShuffleXor(word, side);
    }
    if (wanted && member * UNIT_BITS % 32u == 0u) {
        put_word(place * UNIT_BITS / 32u, word);
    }
}
