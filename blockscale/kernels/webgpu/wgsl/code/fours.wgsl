// Codes and values, four at a time: together where that is sure, else one by one. `near_products`
// and `code_of_one` are those of code/{how}.
// needs: offset/{offset}, quick/{quick}, code/value
fn four_codes(x: vec4<u32>, s: Step, words: vec4<u32>) -> vec4<u32> {
    let quick = quick_codes(near_products(without_offsets(x, s), s), s, words);
    if (quick.sure) {
        return quick.codes;
    }
    if (!QUICK) {
        return vec4(code_of_one(x.x, s, words.x), code_of_one(x.y, s, words.y),
                    code_of_one(x.z, s, words.z), code_of_one(x.w, s, words.w));
    }
    var codes = vec4(0u);
    for (var i = 0u; i < 4u; i++) {
        codes[i] = code_of_one(x[i], s, words[i]);
    }
    return codes;
}

fn code_of(x: u32, s: Step, word: u32) -> u32 {
    let quick = quick_codes(near_products(vec4(without_offset(x, s)), s), s, vec4(word));
    if (quick.sure) {
        return quick.codes.x;
    }
    return code_of_one(x, s, word);
}

fn code_of_one(x: u32, s: Step, word: u32) -> u32 {
    return encode(in_steps(x, s), s, word);
}
