// Values of units of columns. first, last: the steps of their first and their last four.
// needs: swift/columns/exact, swift/code/{family}, swift/narrow/{narrow}, float/{dtype}
@group(0) @binding(values) var<storage, read_write> values: array<vec4<u32>>;

fn keep_columns(first: u32, own: u32) {}

fn put_columns(place: u32, low: vec4<u32>, high: vec4<u32>, first: vec4<u32>, last: vec4<u32>) {
    let one = plain(0x3f800000u);
    let any = plain(first.x); // not a constant, with which compilers would take sums apart
    var written = values_of_coded(coded(low, vec4(0u), any), one);
    written = four_products(written, first);
    if (FOURS == 2u) {
        let more = values_of_coded(coded(high, vec4(0u), any), one);
        written = narrowed8(written, four_products(more, last));
    }
    values[place] = written;
}

fn take_rare_columns(start: u32, top: u32, block: u32, keeps: bool) {
    for (var c = 0u; c < WIDTH; c++) {
        let chosen = exact_choice(top, c);
        let s = step_of(chosen.scale, chosen.zero, 0u, chosen.offset);
        for (var r = 0u; r < ROWS; r++) {
            let place = start + r * sizes.units;
            let own = four_of(x[place], c / 4u)[c % 4u];
            let value = narrow(value_of(code_of_one(own, s, 0u), s));
            let kept = select(values[place][c / FOURS], 0u, c % FOURS == 0u);
            values[place][c / FOURS] = kept | (value << (c % FOURS * 16u));
        }
    }
}
