// SPDX-License-Identifier: BSD-3-Clause
// The fast path (kernels/fast_path): which units of 16 bytes an invocation holds, and how codes,
// values and scales are written. Blocks that need exact arithmetic of integers are left for the end.

//# exact_fallback
// Blocks whose numbers ask for exact arithmetic, in loops that are not unrolled.
// needs: fast_path_memory/lanes, choose/{rule}, step/{step}, stored_params/outer_{given_outer}
// needs: code/{how}, rounding/random/{draws}, fast_path_choose/range/{range}
// needs: fast_path_memory/exact_fallback/{exact_fallback}
fn take_rare(block: u32, member: u32) {
    let number = sizes.first / sizes.block + block;
    let outer = given_outer(number);
    let chosen = choose(exact_range(block), outer);
    let s = step_of(chosen.scale, chosen.zero, outer, chosen.offset);
    write_rare(block, member, chosen, s);
}

fn number_at(i: u32) -> u32 {
    let unit = x[i / (4u * FOURS)];
    return four_of(unit, i / 4u % FOURS)[i % 4u];
}

//# lanes
// What an invocation has of a block: units that are TEAM apart, or (TOGETHER) neighbours.
// needs: fast_path_memory/load/{load}, fast_path_memory/place/{place}
const TEAMS: u32 = GROUP / TEAM;
const BLOCK_UNITS: u32 = TEAM * UNITS;
const LANE_FOURS: u32 = UNITS * FOURS;
alias Near = array<vec4<u32>, LANE_FOURS>; // of its numbers, in steps

fn unit_of(u: u32, member: u32) -> u32 {
    return select(u * TEAM + member, member * UNITS + u, TOGETHER);
}

// The place in memory of the i-th element of a block.
fn element_of(block: u32, i: u32) -> u32 {
    return place_of(block, i / (4u * FOURS)) * 4u * FOURS + i % (4u * FOURS);
}

//# scales
// Scales and zero points of blocks, as they are stored.
// needs: stored_params/store/scale, stored_params/store/zeros_{store_zeros}
const SCALES_A_WORD: u32 = 32u / SCALE_BITS;
var<private> scale_word: u32;

fn keep(s: FastChoice, block: u32, member: u32, b: u32, there: bool) {
    if (SCALE_BITS == 32u) {
        if (there && s.sure && member == 0u) {
            put_scales(sizes.first / sizes.block + block, s.scale);
            put_zeros(sizes.first / sizes.block + block, bitcast<u32>(s.zero));
        }
        return;
    }
    let place = block % SCALES_A_WORD;
    let own = select(0u, s.scale, there) << (place * SCALE_BITS);
    scale_word = select(scale_word | own, own, b % SCALES_A_WORD == 0u);
    if ((b + 1u) % min(SCALES_A_WORD, BLOCKS) == 0u) {
        var word = scale_word;
        for (var side = 1u; side * BLOCKS < SCALES_A_WORD; side *= 2u) {
            word |= subgroupShuffleXor(word, side * TEAM);
        }
        let start = block + 1u - min(SCALES_A_WORD, BLOCKS);
        if (member == 0u && start % SCALES_A_WORD == 0u && start < sizes.blocks) {
            put_scales((sizes.first / sizes.block + start) / SCALES_A_WORD, word);
        }
    }
}

//# draw/drawn
// Random numbers of a four of elements; the first element's index is a multiple of four.
// needs: fast_path_memory/load/{load}, rounding/random/drawn
fn words_at(place: u32, four: u32) -> vec4<u32> {
    let i = sizes.first + (place * FOURS + four) * 4u;
    let index = seed[2] + i;
    return philox(vec2(index, seed[3] + select(0u, 1u, index < i)), vec2(seed[0], seed[1]));
}

//# draw/undrawn
// Rounding that draws nothing.
fn words_at(place: u32, four: u32) -> vec4<u32> {
    return vec4(0u);
}

//# exact_fallback/codes
// needs: code/{how}, fast_path_memory/result/{result}, fast_path_memory/lanes
fn write_rare(block: u32, member: u32, chosen: Chosen, s: Step) {
    let words_a_block = sizes.block / 32u * BITS + sizes.block % 32u * BITS / 32u;
    for (var w = member; w < words_a_block; w += TEAM) {
        let first = 32u * w / BITS; // a word begins within its code
        let inside = 32u * w - first * BITS;
        var word = 0u;
        for (var i = first; i * BITS < 32u * w + 32u; i++) {
            let at = element_of(block, i);
            let code = code_of_one(number_at(at), s, word_of(sizes.first + at));
            let start = i32(i * BITS) - i32(32u * w);
            word |= select(code << (u32(start) & 31u), code >> (u32(-start) & 31u), start < 0);
        }
        let at = element_of(block, first);
        put_word(at / 32u * BITS + (at % 32u * BITS + inside) / 32u, word);
    }
    if (SCALE_BITS == 32u && member == 0u) {
        put_scales(sizes.first / sizes.block + block, chosen.scale);
        put_zeros(sizes.first / sizes.block + block, bitcast<u32>(chosen.zero));
    }
}

//# exact_fallback/values
// needs: code/{how}, fast_path_memory/result/values, memory/float/{dtype}
// needs: fast_path_memory/narrow/{narrow}
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

//# load/halves
// Units of eight numbers of 16 bits.
// needs: memory/float/{dtype}
@group(0) @binding(x) var<storage, read> x: array<vec4<u32>>;
const FOURS: u32 = 2u;

fn four_of(unit: vec4<u32>, j: u32) -> vec4<u32> {
    let two = select(unit.xy, unit.zw, j == 1u);
    return vec4(widen(two.x & 0xffffu), widen(two.x >> 16u), widen(two.y & 0xffffu),
                widen(two.y >> 16u));
}

//# load/words
// Units of four numbers of 32 bits.
@group(0) @binding(x) var<storage, read> x: array<vec4<u32>>;
const FOURS: u32 = 1u;

fn four_of(unit: vec4<u32>, j: u32) -> vec4<u32> {
    return unit;
}

//# narrow/bfloat16
// Finite values, to nearest, ties to even.
fn half_of(x: vec4<u32>) -> vec4<u32> {
    return x + vec4(0x7fffu) + ((x >> vec4(16u)) & vec4(1u));
}

fn narrowed8(low: vec4<u32>, high: vec4<u32>) -> vec4<u32> {
    let a = half_of(low);
    let b = half_of(high);
    return vec4((a.x >> 16u) | (a.y & 0xffff0000u), (a.z >> 16u) | (a.w & 0xffff0000u),
                (b.x >> 16u) | (b.y & 0xffff0000u), (b.z >> 16u) | (b.w & 0xffff0000u));
}

//# narrow/exact
// Values that are bfloat16 already.
fn narrowed8(low: vec4<u32>, high: vec4<u32>) -> vec4<u32> {
    return vec4((low.x >> 16u) | (low.y & 0xffff0000u), (low.z >> 16u) | (low.w & 0xffff0000u),
                (high.x >> 16u) | (high.y & 0xffff0000u), (high.z >> 16u) | (high.w & 0xffff0000u));
}

//# narrow/none
fn narrowed8(low: vec4<u32>, high: vec4<u32>) -> vec4<u32> {
    return low;
}

//# place/line
// Units of blocks that follow one another.
fn place_of(block: u32, unit: u32) -> u32 {
    return block * BLOCK_UNITS + unit;
}

//# place/tile
// Units of blocks that are tiles of a matrix: TILE_UNITS a row, of which a tile has so many that
// they are BLOCK_UNITS; `across` of them lie beside one another.
fn place_of(block: u32, unit: u32) -> u32 {
    let down = block / sizes.across;
    let row = down * (BLOCK_UNITS / TILE_UNITS) + unit / TILE_UNITS;
    return (row * sizes.across + block - down * sizes.across) * TILE_UNITS + unit % TILE_UNITS;
}

//# result/codes
// Packed codes, and scales. Neighbours put their codes together to whole words.
// needs: fast_path_memory/lanes, fast_path_memory/draw/{draws}, fast_path_code/{family}
// needs: fast_path_memory/scales, fast_path_memory/words/{words}
const UNIT_BITS: u32 = 4u * FOURS * BITS;

fn put(block: u32, member: u32, near: ptr<function, Near>, s: FastChoice, wanted: bool) {
    for (var u = 0u; u < UNITS; u++) {
        let place = place_of(block, unit_of(u, member));
        let low = codes_of(coded((*near)[u * FOURS], words_at(place, 0u), s.step), s.step);
        var high = 0u;
        if (FOURS == 2u) {
            let last = (*near)[u * FOURS + FOURS - 1u];
            high = codes_of(coded(last, words_at(place, 1u), s.step), s.step);
        }
        put_unit(place, member, low, high, wanted);
    }
}

fn put_unit(place: u32, member: u32, low: u32, high: u32, wanted: bool) {
    if (UNIT_BITS == 64u) {
        if (wanted) {
            put_two(place, low, high);
        }
        return;
    }
    if (UNIT_BITS == 48u) { // of two neighbours: three words, of which the first has two
        let all = low | (high << 24u);
        let above = high >> 8u;
        let before = subgroupShuffleXor(above, 1u);
        if (wanted && member % 2u == 0u) {
            put_word(place / 2u * 3u, all);
        }
        let next = subgroupShuffleXor(all, 1u);
        if (wanted) {
            if (member % 2u == 0u) {
                put_word(place / 2u * 3u + 1u, above | (next << 16u));
            } else {
                put_word(place / 2u * 3u + 2u, (all >> 16u) | (above << 16u));
            }
        }
        return;
    }
    let all = low | (high << (UNIT_BITS / 2u % 32u));
    if (UNIT_BITS == 24u) { // of four neighbours: three words
        let next = subgroupShuffleDown(all, 1u);
        let at = member % 4u;
        if (wanted && at < 3u) {
            put_word(place / 4u * 3u + at, (all >> (8u * at)) | (next << (24u - 8u * at)));
        }
        return;
    }
    var word = all << (member * UNIT_BITS % 32u);
    for (var side = 1u; side * UNIT_BITS < 32u; side *= 2u) {
        word |= subgroupShuffleXor(word, side);
    }
    if (wanted && member * UNIT_BITS % 32u == 0u) {
        put_word(place * UNIT_BITS / 32u, word);
    }
}

//# result/codes_together
// Packed codes of an invocation, which fill whole words, and scales.
// needs: fast_path_memory/lanes, fast_path_memory/draw/{draws}, fast_path_code/{family}
// needs: fast_path_memory/scales, fast_path_memory/words/{words}
const LANE_WORDS: u32 = LANE_FOURS * 4u * BITS / 32u;

fn put(block: u32, member: u32, near: ptr<function, Near>, s: FastChoice, wanted: bool) {
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

//# result/values
// Values after a round trip; scales are dropped.
// needs: fast_path_memory/lanes, fast_path_memory/draw/{draws}, fast_path_code/{family}
// needs: fast_path_memory/narrow/{narrow}
@group(0) @binding(values) var<storage, read_write> values: array<vec4<u32>>;

fn keep(s: FastChoice, block: u32, member: u32, b: u32, there: bool) {}

fn put(block: u32, member: u32, near: ptr<function, Near>, s: FastChoice, wanted: bool) {
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

//# words/four
// Packed codes as fours of words.
@group(0) @binding(codes) var<storage, read_write> codes: array<vec4<u32>>;

fn put_word(place: u32, word: u32) {
    codes[place / 4u][place % 4u] = word;
}

fn put_two(place: u32, first: u32, second: u32) {
    put_word(2u * place, first);
    put_word(2u * place + 1u, second);
}

fn put_four(place: u32, words: vec4<u32>) {
    codes[place] = words;
}

//# words/one
// Packed codes as words.
@group(0) @binding(codes) var<storage, read_write> codes: array<u32>;

fn put_word(place: u32, word: u32) {
    codes[place] = word;
}

fn put_two(place: u32, first: u32, second: u32) {
    codes[2u * place] = first;
    codes[2u * place + 1u] = second;
}

fn put_four(place: u32, words: vec4<u32>) {
    put_two(2u * place, words.x, words.y);
    put_two(2u * place + 1u, words.z, words.w);
}

//# words/two
// Packed codes as pairs of words.
@group(0) @binding(codes) var<storage, read_write> codes: array<vec2<u32>>;

fn put_word(place: u32, word: u32) {
    codes[place / 2u][place % 2u] = word;
}

fn put_two(place: u32, first: u32, second: u32) {
    codes[place] = vec2(first, second);
}

fn put_four(place: u32, words: vec4<u32>) {
    codes[2u * place] = words.xy;
    codes[2u * place + 1u] = words.zw;
}
