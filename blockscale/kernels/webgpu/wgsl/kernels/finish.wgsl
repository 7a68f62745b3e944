// SPDX-License-Identifier: BSD-3-Clause
// What was found in blocks -> their scales, as stored, with zero points and offsets: TOGETHER
// blocks, which fill whole words, to an invocation.
// needs: memory/grid, choose/{rule}, statistics/block_stats/{block_stats}
// needs: stored_params/outer_{given_outer}, stored_params/store/scale
// needs: stored_params/store/scale_{stored_scale}, stored_params/store/zero_{stored_zero}
// needs: stored_params/store/zeros_{store_zeros}, stored_params/store/offset_{stored_offset}
// needs: stored_params/store/offsets_{store_offsets}

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>,
        @builtin(local_invocation_index) lane: u32) {
    let first = (group_number(group, groups) * 256u + lane) * TOGETHER;
    let end = min(first + TOGETHER, sizes.blocks);
    var scale = 0u;
    var zero = 0u;
    var offset = 0u;
    for (var block = first; block < end; block++) {
        let chosen = choose(range_at(block), given_outer(block));
        zero |= stored_zero(chosen.zero) << (block * ZERO_BITS % 32u);
        scale |= stored_scale(chosen.scale) << (block * SCALE_BITS % 32u);
        offset |= stored_offset(chosen.offset) << (block * OFFSET_BITS % 32u);
        if ((block + 1u) * SCALE_BITS % 32u == 0u || block + 1u == end) {
            put_scales(block * SCALE_BITS / 32u, scale);
            scale = 0u;
        }
        if ((block + 1u) * ZERO_BITS % 32u == 0u || block + 1u == end) {
            put_zeros(block * ZERO_BITS / 32u, zero);
            zero = 0u;
        }
        if ((block + 1u) * OFFSET_BITS % 32u == 0u || block + 1u == end) {
            put_offsets(block * OFFSET_BITS / 32u, offset);
            offset = 0u;
        }
    }
}
