// Packed codes of an invocation, which fill whole words, and scales.
// needs: swift/lanes, swift/draw/{drawn}, swift/code/{family}, swift/scales, swift/words/{words}
const LANE_WORDS: u32 = LANE_FOURS * 4u * BITS / 32u;

fn put(block: u32, member: u32, near: ptr<function, Near>, s: Swift, wanted: bool) {
    let place = place_of(block, unit_of(0u, member));
    var words: array<u32, LANE_WORDS>;
    for (var i = 0u; i < LANE_FOURS; i++) {
        let word = words_at(place + i / FOURS, i % FOURS);
        let four = codes_of(coded((*near)[i], word, s.step), s.step);
        let bit = i * 4u * BITS;
        words[bit / 32u] |= four << (bit % 32u);
        if (bit % 32u + 4u * BITS > 32u) {
            words[bit / 32u + 1u] |= four >> ((32u - bit % 32u) & 31u);
        }
    }
    if (wanted) {
        let start = place * FOURS / 8u * BITS + place * FOURS % 8u * BITS / 8u;
        if (LANE_WORDS % 4u == 0u) {
            for (var w = 0u; w < LANE_WORDS; w += 4u) {
                put_four((start + w) / 4u, vec4(words[w], words[(w + 1u) % LANE_WORDS],
                                                words[(w + 2u) % LANE_WORDS],
                                                words[(w + 3u) % LANE_WORDS]));
            }
        } else if (LANE_WORDS % 2u == 0u) {
            for (var w = 0u; w < LANE_WORDS; w += 2u) {
                put_two((start + w) / 2u, words[w], words[(w + 1u) % LANE_WORDS]);
            }
        } else {
            for (var w = 0u; w < LANE_WORDS; w++) {
                put_word(start + w, words[w]);
            }
        }
    }
}
