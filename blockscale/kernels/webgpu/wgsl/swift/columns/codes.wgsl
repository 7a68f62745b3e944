// Packed codes of units of columns, which fill whole words, and the columns' scales.
// needs: swift/columns/exact, swift/code/{family}, store/scale
@group(0) @binding(codes) var<storage, read_write> codes: array<u32>;
const UNIT_WORDS: u32 = WIDTH * BITS / 32u;

fn keep_columns(first: u32, own: u32) {
    for (var c = 0u; c < WIDTH; c += 32u / SCALE_BITS) {
        var word = 0u;
        for (var i = 0u; i < 32u / SCALE_BITS; i++) {
            word |= scales_chosen[own][c + i] << (i * SCALE_BITS % 32u);
        }
        put_scales((first + c) * SCALE_BITS / 32u, word);
    }
}

fn put_columns(place: u32, low: vec4<u32>, high: vec4<u32>, first_steps: vec4<u32>, last: vec4<u32>) {
    let any = plain(first_steps.x); // not a constant, with which compilers would take sums apart
    let first = codes_of(coded(low, vec4(0u), any), any);
    if (FOURS == 1u) {
        codes[place] = first;
        return;
    }
    let second = codes_of(coded(high, vec4(0u), any), any);
    if (UNIT_WORDS == 1u) {
        codes[place] = first | (second << (4u * BITS % 32u));
    } else {
        codes[2u * place] = first;
        codes[2u * place + 1u] = second;
    }
}

fn take_rare_columns(start: u32, top: u32, block: u32, keeps: bool) {
    for (var c = 0u; c < WIDTH; c++) {
        let chosen = exact_choice(top, c);
        let s = step_of(chosen.scale, chosen.zero, 0u, chosen.offset);
        if (SCALE_BITS == 32u && keeps) { // those of 8 bits are right
            put_scales(block + c, chosen.scale);
        }
        for (var r = 0u; r < ROWS; r++) {
            let place = start + r * sizes.units;
            let code = code_of_one(four_of(x[place], c / 4u)[c % 4u], s, 0u);
            let word = place * UNIT_WORDS + c * BITS / 32u;
            let kept = select(codes[word], 0u, c * BITS % 32u == 0u);
            codes[word] = kept | (code << (c * BITS % 32u));
        }
    }
}
