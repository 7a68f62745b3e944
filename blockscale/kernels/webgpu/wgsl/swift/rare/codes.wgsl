// needs: code/{how}, swift/result/{result}, swift/lanes
fn write_rare(block: u32, member: u32, chosen: Chosen, s: Step) {
    let words_a_block = sizes.block / 32u * BITS + sizes.block % 32u * BITS / 32u;
    for (var w = member; w < words_a_block; w += TEAM) {
        let first = 32u * w / BITS; // a word begins within its code
        let inside = 32u * w - first * BITS;
        var word = 0u;
        for (var i = first; i * BITS < 32u * w + 32u; i++) {
            let at = element_of(block, i);
            let code = code_of_one(number_at(at), s, word_of(sizes.first + at));
            let start = i32(i * BITS) - i32(32u * w);
            word |= select(code << (u32(start) & 31u), code >> (u32(-start) & 31u), start < 0);
        }
        let at = element_of(block, first);
        put_word(at / 32u * BITS + (at % 32u * BITS + inside) / 32u, word);
    }
    if (SCALE_BITS == 32u && member == 0u) {
        put_scales(sizes.first / sizes.block + block, chosen.scale);
        put_zeros(sizes.first / sizes.block + block, bitcast<u32>(chosen.zero));
    }
}
