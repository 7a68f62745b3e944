// SPDX-License-Identifier: BSD-3-Clause
// Packed codes -> codes, one an item of ITEM_BITS; an invocation writes one word.
// needs: memory/grid, memory/load/codes_in_rows
@group(0) @binding(items) var<storage, read_write> items: array<u32>;

const PER_WORD = 32u / ITEM_BITS;

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>,
        @builtin(local_invocation_index) lane: u32) {
    let word = group_number(group, groups) * 256u + lane;
    if (word >= (sizes.count + PER_WORD - 1u) / PER_WORD) {
        return;
    }
    var unpacked = 0u;
    for (var j = 0u; j < PER_WORD && PER_WORD * word + j < sizes.count; j++) {
        let item = item_of(code_at(PER_WORD * word + j)) & (0xffffffffu >> (32u - ITEM_BITS));
        unpacked |= item << (j * ITEM_BITS);
    }
    items[word] = unpacked;
}

fn item_of(code: u32) -> u32 {
    if (BY_SIGN) {
        return select(0xffffffffu, 1u, code == 1u);
    }
    if (SIGNED) {
        return bitcast<u32>(bitcast<i32>(code << (32u - BITS)) >> (32u - BITS));
    }
    return code;
}
