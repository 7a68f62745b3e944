// The product of two words, (low word, high word), on devices with the feature shader-int64.
fn word_product(a: u32, b: u32) -> vec2<u32> {
    let whole = u64(a) * u64(b);
    return vec2<u32>(u32(whole), u32(whole >> 32u));
}
