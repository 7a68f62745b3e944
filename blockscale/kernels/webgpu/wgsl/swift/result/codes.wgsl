// Packed codes, and scales as they are stored. Neighbours put their codes together to whole words.
// needs: swift/near/{how}, swift/code/{family}, store/scale, store/zeros_{store_zeros}
@group(0) @binding(codes) var<storage, read_write> codes: array<u32>;
const UNIT_BITS: u32 = 4u * FOURS * BITS;
const SCALES_A_WORD: u32 = 32u / SCALE_BITS;
var<private> scale_word: u32;

fn keep(s: Swift, block: u32, member: u32, b: u32, there: bool) {
    if (SCALE_BITS == 32u) {
        if (there && s.sure && member == 0u) {
            put_scales(sizes.first / sizes.block + block, s.scale);
            put_zeros(sizes.first / sizes.block + block, bitcast<u32>(s.zero));
        }
        return;
    }
    let place = block % SCALES_A_WORD;
    let own = select(0u, s.scale, there) << (place * SCALE_BITS);
    scale_word = select(scale_word | own, own, b % SCALES_A_WORD == 0u);
    if ((b + 1u) % min(SCALES_A_WORD, BLOCKS) == 0u) {
        var word = scale_word;
        for (var side = 1u; side * BLOCKS < SCALES_A_WORD; side *= 2u) {
            word |= subgroupShuffleXor(word, side * TEAM);
        }
        let start = block + 1u - min(SCALES_A_WORD, BLOCKS);
        if (member == 0u && start % SCALES_A_WORD == 0u && start < sizes.blocks) {
            put_scales((sizes.first / sizes.block + start) / SCALES_A_WORD, word);
        }
    }
}

fn put_unit(place: u32, member: u32, unit: vec4<u32>, s: Swift, wanted: bool) {
    let low = codes_of(coded(near4(four_of(unit, 0u), s.step), s.step), s.step);
    var high = 0u;
    if (FOURS == 2u) {
        high = codes_of(coded(near4(four_of(unit, 1u), s.step), s.step), s.step);
    }
    if (UNIT_BITS == 64u) {
        if (wanted) {
            codes[2u * place] = low;
            codes[2u * place + 1u] = high;
        }
        return;
    }
    let all = low | (high << (UNIT_BITS / 2u % 32u));
    if (UNIT_BITS == 24u) { // of four neighbours: three words
        let next = subgroupShuffleDown(all, 1u);
        let at = member % 4u;
        if (wanted && at < 3u) {
            codes[place / 4u * 3u + at] = (all >> (8u * at)) | (next << (24u - 8u * at));
        }
        return;
    }
    var word = all << (member * UNIT_BITS % 32u);
    for (var side = 1u; side * UNIT_BITS < 32u; side *= 2u) {
        word |= subgroupShuffleXor(word, side);
    }
    if (wanted && member * UNIT_BITS % 32u == 0u) {
        codes[place * UNIT_BITS / 32u] = word;
    }
}
