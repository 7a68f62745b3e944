// Elements of any dtype as bytes: a word has LANES of them, or each has WORDS words.
const LANES: u32 = max(32u / ITEM_BITS, 1u);
const WORDS: u32 = max(ITEM_BITS / 32u, 1u);

// The bits of element `at` in a word of its tensor, moved to the lane of element `i`.
fn moved(word: u32, at: u32, i: u32) -> u32 {
    if (ITEM_BITS >= 32u) {
        return word;
    }
    return extractBits(word, at % LANES * ITEM_BITS, min(ITEM_BITS, 32u)) << (i % LANES * ITEM_BITS % 32u);
}

// The word of element `at` from which word `w` of the result takes.
fn word_of(at: u32, w: u32) -> u32 {
    return at * WORDS / LANES + w % WORDS;
}
