// SPDX-License-Identifier: BSD-3-Clause
// Codes, one an item of ITEM_BITS -> rows of bytes that are streams of BITS (docs/numerics.md, 6).
// An invocation writes the four bytes of one word, which may belong to several rows.
// needs: memory/grid
@group(0) @binding(items) var<storage, read> items: array<u32>;
@group(0) @binding(codes) var<storage, read_write> codes: array<u32>;

const PER_WORD = 32u / ITEM_BITS;

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>,
        @builtin(local_invocation_index) lane: u32) {
    let word = group_number(group, groups) * 256u + lane;
    if (word >= (sizes.bytes + 3u) / 4u) {
        return;
    }
    var packed = 0u;
    for (var j = 0u; j < 4u && 4u * word + j < sizes.bytes; j++) {
        packed |= byte_of(4u * word + j) << (8u * j);
    }
    codes[word] = packed;
}

// A byte of all rows: the bits of the one, two or more codes that reach into it.
fn byte_of(place: u32) -> u32 {
    let row = place / sizes.row_bytes;
    let bit = (place - row * sizes.row_bytes) * 8u;
    let last = min((bit + 7u) / BITS, sizes.row - 1u);
    var byte = 0u;
    for (var column = bit / BITS; column <= last; column++) {
        let start = column * BITS;
        let code = code_at(row * sizes.row + column);
        byte |= select(code >> (bit - start), code << (start - bit), start > bit);
    }
    return byte & 0xffu;
}

fn code_at(i: u32) -> u32 {
    let item = (items[i / PER_WORD] >> (i % PER_WORD * ITEM_BITS)) & (0xffffffffu >> (32u - ITEM_BITS));
    if (BY_SIGN) {
        return select(0u, 1u, item - 1u < (1u << (ITEM_BITS - 1u)) - 1u); // above 0
    }
    return item & (0xffffffffu >> (32u - BITS));
}
