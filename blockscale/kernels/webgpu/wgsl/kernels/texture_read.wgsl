// SPDX-License-Identifier: BSD-3-Clause
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
