// Scales and zero points of blocks, as they are stored.
// needs: store/scale, store/zeros_{store_zeros}
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
