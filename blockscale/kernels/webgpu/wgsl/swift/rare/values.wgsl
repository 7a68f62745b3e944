// needs: code/{how}, swift/result/values, float/{dtype}, swift/narrow/{narrow}
fn write_rare(block: u32, member: u32, chosen: Chosen, s: Step) {
    for (var u = 0u; u < UNITS; u++) {
        let place = place_of(block, unit_of(u, member));
        var word = vec4(0u);
        for (var i = 0u; i < 4u * FOURS; i++) {
            let at = 4u * FOURS * place + i;
            let value = narrow(value_of(code_of_one(number_at(at), s, word_of(sizes.first + at)), s));
            word[i / FOURS] |= value << (i % FOURS * 16u);
        }
        values[place] = word;
    }
}
