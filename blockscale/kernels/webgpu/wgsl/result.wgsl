// SPDX-License-Identifier: BSD-3-Clause
// What is made of numbers whose step is known: codes, values, or gradients.

//# codes
// Codes of a chunk, written as a stream of OUT_BITS each that begins with a word.
// needs: code/{how}, rounding/random/{draws}
@group(0) @binding(codes) var<storage, read_write> codes: array<u32>;

struct Written {
    place: u32,  // of the next word
    word: u32,   // what it holds so far,
    filled: u32, // in so many bits
}

fn written_from(i: u32) -> Written {
    return Written(i / 32u * OUT_BITS + i % 32u * OUT_BITS / 32u, 0u, 0u);
}

// i: of the first of four elements in what is bound
fn made4(x: vec4<u32>, s: Step, i: u32) -> vec4<u32> {
    let codes = four_codes(x, s, words_of(sizes.first + i));
    if (i + 4u <= sizes.bound) {
        return codes;
    }
    return select(vec4(0u), codes, vec4(i, i + 1u, i + 2u, i + 3u) < vec4(sizes.bound));
}

fn put4(w: Written, i: u32, four: vec4<u32>) -> Written {
    if (OUT_BITS <= 8u) {
        let bits = vec4(0u, 1u, 2u, 3u) * min(OUT_BITS, 8u);
        let placed = four << bits;
        return append(w, placed.x | placed.y | placed.z | placed.w, 4u * OUT_BITS);
    }
    let one = append(w, four.x | (four.y << min(OUT_BITS, 16u)), 2u * OUT_BITS);
    return append(one, four.z | (four.w << min(OUT_BITS, 16u)), 2u * OUT_BITS);
}

// bits: `count` of them, at most 32
fn append(w: Written, bits: u32, count: u32) -> Written {
    let word = w.word | (bits << w.filled);
    let filled = w.filled + count;
    if (filled < 32u) {
        return Written(w.place, word, filled);
    }
    if (w.place < sizes.words) {
        codes[w.place] = word;
    }
    return Written(w.place + 1u, select(bits >> (32u - w.filled), 0u, w.filled == 0u), filled - 32u);
}

//# gradient
// A gradient where its number is in range, else 0, in words of GRADIENT_BITS an element.
// needs: code/{how}, element/in_range/{ends}
@group(0) @binding(gradient) var<storage, read> gradient: array<u32>;
@group(0) @binding(values) var<storage, read_write> values: array<u32>;

struct Written {
    nothing: u32,
}

fn written_from(i: u32) -> Written {
    return Written(0u);
}

// All ones where a gradient passes.
fn made4(x: vec4<u32>, s: Step, i: u32) -> vec4<u32> {
    let passes = vec4(inside(in_steps(x.x, s), s), inside(in_steps(x.y, s), s),
                      inside(in_steps(x.z, s), s), inside(in_steps(x.w, s), s));
    return select(vec4(0u), vec4(0xffffffffu), passes);
}

fn put4(w: Written, i: u32, four: vec4<u32>) -> Written {
    if (GRADIENT_BITS == 32u) {
        for (var j = 0u; j < 4u && i + j < sizes.bound; j++) {
            values[i + j] = gradient[i + j] & four[j];
        }
        return w;
    }
    for (var j = 0u; j < 2u && i + 2u * j < sizes.bound; j++) {
        let mask = (four[2u * j] & 0xffffu) | (four[2u * j + 1u] << 16u);
        values[i / 2u + j] = gradient[i / 2u + j] & mask;
    }
    return w;
}

//# values
// Values of a chunk after a round trip.
// needs: code/{how}, rounding/random/{draws}, memory/store/{store}
struct Written {
    nothing: u32,
}

fn written_from(i: u32) -> Written {
    return Written(0u);
}

fn made4(x: vec4<u32>, s: Step, i: u32) -> vec4<u32> {
    return four_values(four_codes(x, s, words_of(sizes.first + i)), s);
}

fn put4(w: Written, i: u32, four: vec4<u32>) -> Written {
    if (i < sizes.bound) {
        store4(i / 4u, four);
    }
    return w;
}
