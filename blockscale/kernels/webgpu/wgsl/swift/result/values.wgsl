// Values after a round trip; scales are dropped.
// needs: swift/lanes, swift/draw/{drawn}, swift/code/{family}, swift/narrow/{narrow}
@group(0) @binding(values) var<storage, read_write> values: array<vec4<u32>>;

fn keep(s: Swift, block: u32, member: u32, b: u32, there: bool) {}

fn put(block: u32, member: u32, near: ptr<function, Near>, s: Swift, wanted: bool) {
    for (var u = 0u; u < UNITS; u++) {
        let place = place_of(block, unit_of(u, member));
        let low = coded((*near)[u * FOURS], words_at(place, 0u), s.step);
        var written = values_of_coded(low, s.step);
        if (FOURS == 2u) {
            let high = coded((*near)[u * FOURS + FOURS - 1u], words_at(place, 1u), s.step);
            written = narrowed8(written, values_of_coded(high, s.step));
        }
        if (wanted) {
            values[place] = written;
        }
    }
}
