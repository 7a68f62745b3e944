// SPDX-License-Identifier: BSD-3-Clause
// Textures filled, read, and mapped by a primitive (texture_storage.py).

//# fill
// Packed rows of a buffer -> texels: component i of texel (x, y, z) is element 4 x + i of row
// y + height z, as BITS bits; components beyond a row's end are 0.
// needs: texture/texel/{texel}
@group(0) @binding(packed) var<storage, read> packed: array<u32>;

// Element number `e` of the row whose bytes begin at `start`.
fn element(start: u32, e: u32) -> u32 {
    let byte = start + (e * BITS) / 8u;
    let at = (byte % 4u) * 8u + (e * BITS) % 8u;
    var bits = packed[byte / 4u] >> at;
    if (at + BITS > 32u) {
        bits |= packed[byte / 4u + 1u] << (32u - at);
    }
    return bits & (0xffffffffu >> (32u - BITS));
}

@compute @workgroup_size(LOCAL_X, LOCAL_Y, 1)
fn main(@builtin(global_invocation_id) at: vec3<u32>) {
    if (at.x * 4u >= sizes.width || at.y >= sizes.rows) {
        return;
    }
    let row = sizes.first + at.y;
    var texel = vec4<u32>();
    for (var i = 0u; i < 4u; i++) {
        let e = at.x * 4u + i;
        if (e < sizes.width) {
            texel[i] = element(at.y * sizes.row_bytes, e);
        }
    }
    textureStore(result, vec3(at.x, row % sizes.height, row / sizes.height), texel);
}

//# read
// Texels -> packed rows of a buffer (fill.wgsl), a word an invocation. UNIT is how many bits are
// known to lie in one row: 32 where rows are whole words, else 8.
// needs: memory/grid
@group(0) @binding(source) var source: texture_3d<u32>;
@group(0) @binding(packed) var<storage, read_write> packed: array<u32>;

// UNIT bits of a row from bit `start` on.
fn unit(row: u32, start: u32) -> u32 {
    let y = row % sizes.height;
    let z = row / sizes.height;
    var bits = 0u;
    for (var e = start / BITS; e < sizes.width && e * BITS < start + UNIT; e++) {
        let code = textureLoad(source, vec3(e / 4u, y, z), 0)[e % 4u];
        if (e * BITS < start) {
            bits |= code >> (start - e * BITS);
        } else {
            bits |= code << (e * BITS - start);
        }
    }
    return bits & (0xffffffffu >> (32u - UNIT));
}

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>,
        @builtin(local_invocation_index) lane: u32) {
    let i = group_number(group, groups) * 64u + lane;
    if (i >= sizes.words) {
        return;
    }
    var word = 0u;
    for (var shift = 0u; shift < 32u; shift += UNIT) {
        let byte = i * 4u + shift / 8u;
        let row = byte / sizes.row_bytes;
        if (row < sizes.rows) {
            word |= unit(sizes.first + row, (byte % sizes.row_bytes) * 8u) << shift;
        }
    }
    packed[i] = word;
}

//# map
// Texels -> texels, each component with the step of its block: numbers become codes, codes numbers,
// or numbers what is left of them. SHARED: the four components of a texel are in one block.
// needs: texture/texel/{texel}, texture/blocks/{texels}, texture/ops/{op}, rounding/random/{draws}
// needs: stored_params/step
@group(0) @binding(source) var source: texture_3d<u32>;

@compute @workgroup_size(LOCAL_X, LOCAL_Y, LOCAL_Z)
fn main(@builtin(global_invocation_id) at: vec3<u32>) {
    if (any(at * vec3(4u, 1u, 1u) >= vec3(sizes.width, sizes.height, sizes.depth))) {
        return;
    }
    let given = textureLoad(source, at, 0);
    let start = row_start(at.y, at.z);
    let first = at.x * 4u;
    let index = (at.z * sizes.height + at.y) * sizes.width + first;
    let words = words_of(index);
    var made = vec4<u32>();
    if (SHARED) {
        made = results_of(given, step_at(block_in_row(start, first)), words);
    } else {
        made = one_by_one(given, start, first, words);
    }
    // components beyond a row's end are 0
    let there = vec4(first) + vec4(0u, 1u, 2u, 3u) < vec4(sizes.width);
    textureStore(result, at, select(vec4<u32>(), made, there));
}

fn one_by_one(given: vec4<u32>, start: u32, first: u32, words: vec4<u32>) -> vec4<u32> {
    var made = vec4<u32>();
    var block = block_in_row(start, first);
    var s = step_at(block);
    for (var i = 0u; i < 4u; i++) {
        let own = block_in_row(start, min(first + i, sizes.width - 1u));
        if (own != block) {
            block = own;
            s = step_at(block);
        }
        made[i] = result_of(given[i], s, words[i]);
    }
    return made;
}
