// The product of two words: (low word, high word).
// needs: bits/wide
fn word_product(a: u32, b: u32) -> vec2<u32> {
    return wide_product(a, b);
}
