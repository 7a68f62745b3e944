// SPDX-License-Identifier: BSD-3-Clause
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
