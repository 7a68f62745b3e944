// SPDX-License-Identifier: BSD-3-Clause
// How numbers in memory are found, read and written, in float32 or in 16 bits.

//# grid
// The number of a workgroup in a grid of two dimensions (gpu/launch.py).
fn group_number(group: vec3<u32>, groups: vec3<u32>) -> u32 {
    return group.x + group.y * groups.x;
}

//# float/bfloat16
// Numbers of a tensor of bfloat16.
// needs: bits/half
const FLOAT_BITS: u32 = 16u;

fn widen(half: u32) -> u32 {
    return widen_bfloat16(half);
}

fn narrow(x: u32) -> u32 {
    return narrow_bfloat16(x);
}

//# float/float16
// Numbers of a tensor of float16.
// needs: bits/half
const FLOAT_BITS: u32 = 16u;

fn widen(half: u32) -> u32 {
    return widen_float16(half);
}

fn narrow(x: u32) -> u32 {
    return narrow_float16(x);
}

//# float/float32
// Numbers of a tensor of float32.
const FLOAT_BITS: u32 = 32u;

fn widen(x: u32) -> u32 {
    return x;
}

fn narrow(x: u32) -> u32 {
    return x;
}

//# load/codes_in_rows
// Codes of BITS in rows that end anywhere in a byte; i counts elements of a whole tensor.
@group(0) @binding(codes) var<storage, read> codes: array<u32>;

fn code_at(i: u32) -> u32 {
    let row = i / sizes.row;
    let bit = (i - row * sizes.row) * BITS;
    let place = row * sizes.row_bytes + bit / 8u;
    let shift = place % 4u * 8u + bit % 8u;
    var pattern = codes[place / 4u] >> shift;
    if (shift + BITS > 32u) {
        pattern |= codes[place / 4u + 1u] << (32u - shift);
    }
    return pattern & (0xffffffffu >> (32u - BITS));
}

//# load/fours_in_rows
// Four codes from i on, which counts elements of a piece of a tensor, where rows end within bytes.
// needs: memory/load/codes_in_rows
fn codes4(i: u32) -> vec4<u32> {
    let at = sizes.first + i;
    return vec4(code_at(at), code_at(at + 1u), code_at(at + 2u), code_at(at + 3u));
}

//# load/fours_in_stream
// Codes of BITS without gaps between rows; i counts elements of a piece.
@group(0) @binding(codes) var<storage, read> codes: array<u32>;

fn code_at(i: u32) -> u32 {
    let bit = i % 32u * BITS;
    let word = i / 32u * BITS + bit / 32u;
    let shift = bit % 32u;
    var pattern = codes[word] >> shift;
    if (shift + BITS > 32u) {
        pattern |= codes[word + 1u] << (32u - shift);
    }
    return pattern & (0xffffffffu >> (32u - BITS));
}

// Four codes from i on, which is a multiple of four.
fn codes4(i: u32) -> vec4<u32> {
    if (BITS > 8u) {
        return vec4(code_at(i), code_at(i + 1u), code_at(i + 2u), code_at(i + 3u));
    }
    let bit = i % 32u * BITS;
    let word = i / 32u * BITS + bit / 32u;
    let shift = bit % 32u;
    var four = codes[word] >> shift;
    if (32u % (4u * BITS) != 0u && shift + 4u * BITS > 32u) {
        four |= codes[word + 1u] << (32u - shift);
    }
    let mask = 0xffffffffu >> (32u - BITS);
    return (vec4(four) >> (vec4(0u, 1u, 2u, 3u) * min(BITS, 8u))) & vec4(mask);
}

//# load/halves
// Numbers of 16 bits, two a word, widened to float32 bits.
// needs: memory/float/{dtype}
@group(0) @binding(x) var<storage, read> x: array<vec2<u32>>;

fn load4(quad: u32) -> vec4<u32> {
    let four = x[quad];
    return vec4(widen(four.x & 0xffffu), widen(four.x >> 16u),
                widen(four.y & 0xffffu), widen(four.y >> 16u));
}

fn load1(i: u32) -> u32 {
    return widen((x[i / 4u][i / 2u % 2u] >> (i % 2u * 16u)) & 0xffffu);
}

//# load/texture
// Numbers in a texture, widened to float32 bits; i counts elements in rows of sizes.width.
// needs: memory/float/{dtype}
@group(0) @binding(x) var x: texture_3d<u32>;

fn load4(quad: u32) -> vec4<u32> {
    if (sizes.width % 4u == 0u) {
        let four = texel_of(quad * 4u);
        return vec4(widen(four.x), widen(four.y), widen(four.z), widen(four.w));
    }
    let i = quad * 4u;
    return vec4(load1(i), load1(i + 1u), load1(i + 2u), load1(i + 3u));
}

fn load1(i: u32) -> u32 {
    return widen(texel_of(i)[i % sizes.width % 4u]);
}

fn texel_of(i: u32) -> vec4<u32> {
    let row = i / sizes.width;
    return textureLoad(x, vec3(i % sizes.width / 4u, row % sizes.height, row / sizes.height), 0);
}

//# load/words
// Numbers of 32 bits as they are.
@group(0) @binding(x) var<storage, read> x: array<vec4<u32>>;

fn load4(quad: u32) -> vec4<u32> {
    return x[quad];
}

fn load1(i: u32) -> u32 {
    return x[i / 4u][i % 4u];
}

//# reading/ones
// The numbers of a block, one at a time.
// needs: memory/load/{load}, blocks/elements_of_{blocks}
struct Numbers {
    four: vec4<u32>, // of which so many exist, here the first or none
    count: u32,
}

fn numbers_at(block: u32, unit: u32) -> Numbers {
    let i = element_at(block, unit) - sizes.first;
    if (i >= sizes.bound) {
        return Numbers(vec4(0u), 0u);
    }
    return Numbers(vec4(load1(i), 0u, 0u, 0u), 1u);
}

fn keys_at(block: u32, unit: u32) -> Keys {
    let read = numbers_at(block, unit);
    if (read.count == 0u) {
        return NOTHING;
    }
    return keys_of(read.four.x);
}

fn units() -> u32 {
    return block_size();
}

//# reading/quads
// The numbers of a block in fours, for blocks that begin at multiples of four in memory.
// needs: memory/load/{load}, blocks/elements_of_line
struct Numbers {
    four: vec4<u32>, // of which so many exist
    count: u32,
}

fn numbers_at(block: u32, unit: u32) -> Numbers {
    let i = block * sizes.block + 4u * unit - sizes.first;
    if (i >= sizes.bound) {
        return Numbers(vec4(0u), 0u);
    }
    return Numbers(load4(i / 4u), min(sizes.bound - i, 4u));
}

fn keys_at(block: u32, unit: u32) -> Keys {
    let read = numbers_at(block, unit);
    if (read.count == 0u) {
        return NOTHING;
    }
    let x = read.four.x;
    let y = select(x, read.four.y, read.count > 1u);
    let z = select(x, read.four.z, read.count > 2u);
    let w = select(x, read.four.w, read.count > 3u);
    return max(max(keys_of(x), keys_of(y)), max(keys_of(z), keys_of(w)));
}

fn units() -> u32 {
    return (sizes.block + 3u) / 4u;
}

//# store/halves
// Values narrowed to 16 bits, two a word.
// needs: memory/float/{dtype}
@group(0) @binding(values) var<storage, read_write> values: array<vec2<u32>>;

fn store4(quad: u32, four: vec4<u32>) {
    values[quad] = vec2(narrow(four.x) | (narrow(four.y) << 16u),
                        narrow(four.z) | (narrow(four.w) << 16u));
}

//# store/words
// Values of 32 bits.
@group(0) @binding(values) var<storage, read_write> values: array<vec4<u32>>;

fn store4(quad: u32, four: vec4<u32>) {
    values[quad] = four;
}
