// SPDX-License-Identifier: BSD-3-Clause
// How a number becomes a whole one (docs/numerics.md, section 2), and the random numbers that
// stochastic rounding draws.

//# down
// needs: rounding/even, rounding/shift
fn goes_up(whole: u32, rest: u32, negative: bool, word: u32) -> bool {
    return negative && rest != 0u;
}

fn rounded(size: u32, unit: u32, negative: bool, word: u32) -> u32 {
    return rounded_by_shift(size, unit, negative, word);
}

//# even
// needs: hardware/{hardware}
// Nearest, ties to even, as `rounded`: beside 2^23 units the neighbours of a float32 are a unit
// apart. Not where subnormals count, which sums may flush.
fn rounded_even(size: u32, unit: u32) -> u32 {
    let magic = (unit + 23u) << 23u;
    return sum(size, magic) - magic;
}

//# nearest_away
// needs: rounding/even, rounding/shift
fn goes_up(whole: u32, rest: u32, negative: bool, word: u32) -> bool {
    return rest >= 0x80000000u;
}

fn rounded(size: u32, unit: u32, negative: bool, word: u32) -> u32 {
    return rounded_by_shift(size, unit, negative, word);
}

//# nearest_even
// needs: rounding/even, rounding/shift
fn goes_up(whole: u32, rest: u32, negative: bool, word: u32) -> bool {
    return rest > 0x80000000u || (rest == 0x80000000u && (whole & 1u) == 1u);
}

fn rounded(size: u32, unit: u32, negative: bool, word: u32) -> u32 {
    return rounded_even(size, unit);
}

//# shift
// How many units 2^(unit - 127) a magnitude is, rounded by `goes_up`; it is at most 2^23 of them.
fn rounded_by_shift(size: u32, unit: u32, negative: bool, word: u32) -> u32 {
    let field = max(size >> 23u, 1u);
    let mantissa = (size & 0x7fffffu) | select(0u, 0x800000u, size >= 0x800000u);
    let shift = unit + 23u - field;
    if (shift == 0u) {
        return mantissa;
    }
    var whole = 0u;
    var rest = mantissa; // the fraction in units of 2^-32; its last bit stands for what is below
    if (shift < 32u) {
        whole = mantissa >> shift;
        rest = mantissa << (32u - shift);
    } else if (shift > 32u) {
        let lost = min(shift - 32u, 31u);
        let kept = mantissa >> lost;
        rest = kept | u32((kept << lost) != mantissa);
    }
    return whole + u32(goes_up(whole, rest, negative, word));
}

//# stochastic
// needs: rounding/even, rounding/shift
fn goes_up(whole: u32, rest: u32, negative: bool, word: u32) -> bool {
    return (word << 8u) < rest;
}

fn rounded(size: u32, unit: u32, negative: bool, word: u32) -> u32 {
    return rounded_by_shift(size, unit, negative, word);
}

//# toward_zero
// needs: rounding/even, rounding/shift
fn goes_up(whole: u32, rest: u32, negative: bool, word: u32) -> bool {
    return false;
}

fn rounded(size: u32, unit: u32, negative: bool, word: u32) -> u32 {
    return rounded_by_shift(size, unit, negative, word);
}

//# up
// needs: rounding/even, rounding/shift
fn goes_up(whole: u32, rest: u32, negative: bool, word: u32) -> bool {
    return !negative && rest != 0u;
}

fn rounded(size: u32, unit: u32, negative: bool, word: u32) -> u32 {
    return rounded_by_shift(size, unit, negative, word);
}

//# random/drawn
// The random number of each element (docs/numerics.md, 2). seed: its two words, then the two of the
// index of the first element.
// needs: rounding/random/philox
@group(0) @binding(seed) var<storage, read> seed: array<u32>;

fn word_of(i: u32) -> u32 {
    let index = seed[2] + i;
    return draw(vec2(index, seed[3] + select(0u, 1u, index < i)), vec2(seed[0], seed[1]));
}

// Those of an element and the next three.
fn words_of(i: u32) -> vec4<u32> {
    let index = seed[2] + i;
    return draw_four(vec2(index, seed[3] + select(0u, 1u, index < i)), vec2(seed[0], seed[1]));
}

//# random/none
// Roundings that draw nothing.
fn draw(index: vec2<u32>, seed: vec2<u32>) -> u32 {
    return 0u;
}

fn draw_four(index: vec2<u32>, seed: vec2<u32>) -> vec4<u32> {
    return vec4(0u);
}

//# random/philox
// Counter-based random numbers (docs/numerics.md, section 2): Philox4x32-10 (Salmon et al., SC 2011).
// needs: bits/wide, rounding/random/product/{wide}
// index: of the element; seed; both of 64 bits. 24 random bits.
fn draw(index: vec2<u32>, seed: vec2<u32>) -> u32 {
    return philox(index, seed)[index.x & 3u];
}

// Those of an element and the next three.
fn draw_four(index: vec2<u32>, seed: vec2<u32>) -> vec4<u32> {
    let first = philox(index, seed);
    let skipped = index.x & 3u;
    if (skipped == 0u) {
        return first;
    }
    let second = philox(wide_sum(index, vec2(4u, 0u)), seed);
    if (skipped == 1u) {
        return vec4(first.yzw, second.x);
    }
    return select(vec4(first.w, second.xyz), vec4(first.zw, second.xy), skipped == 2u);
}

// The four numbers of the four elements that an index belongs to.
fn philox(index: vec2<u32>, seed: vec2<u32>) -> vec4<u32> {
    var counter = vec4<u32>((index.x >> 2u) | (index.y << 30u), index.y >> 2u, 0u, 0u);
    var key = seed;
    for (var i = 0u; i < 10u; i++) {
        let a = word_product(counter.x, 0xd2511f53u);
        let b = word_product(counter.z, 0xcd9e8d57u);
        counter = vec4<u32>(b.y ^ counter.y ^ key.x, b.x, a.y ^ counter.w ^ key.y, a.x);
        key += vec2<u32>(0x9e3779b9u, 0xbb67ae85u);
    }
    return counter >> vec4(8u);
}

//# random/product/native
// The product of two words, (low word, high word), on devices with the feature shader-int64.
fn word_product(a: u32, b: u32) -> vec2<u32> {
    let whole = u64(a) * u64(b);
    return vec2<u32>(u32(whole), u32(whole >> 32u));
}

//# random/product/words
// The product of two words: (low word, high word).
// needs: bits/wide
fn word_product(a: u32, b: u32) -> vec2<u32> {
    return wide_product(a, b);
}

//# random/undrawn
fn word_of(i: u32) -> u32 {
    return 0u;
}

fn words_of(i: u32) -> vec4<u32> {
    return vec4(0u);
}
