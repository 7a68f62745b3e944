// needs: code/{how}, swift/result/codes
fn write_rare(block: u32, member: u32, chosen: Chosen, s: Step) {
    let words_a_block = sizes.block / 32u * BITS + sizes.block % 32u * BITS / 32u;
    for (var w = member; w < words_a_block; w += TEAM) {
        var word = 0u;
        for (var i = 32u * w / BITS; i * BITS < 32u * w + 32u; i++) {
            let at = block * sizes.block + i;
            let code = code_of_one(number_at(at), s, word_of(sizes.first + at));
            let start = i32(i * BITS) - i32(32u * w);
            word |= select(code << (u32(start) & 31u), code >> (u32(-start) & 31u), start < 0);
        }
        codes[block * words_a_block + w] = word;
    }
    if (SCALE_BITS == 32u && member == 0u) {
        put_scales(sizes.first / sizes.block + block, chosen.scale);
        put_zeros(sizes.first / sizes.block + block, bitcast<u32>(chosen.zero));
    }
}
