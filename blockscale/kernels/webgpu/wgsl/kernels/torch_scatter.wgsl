// SPDX-License-Identifier: BSD-3-Clause
// A tensor of any dtype is written into a view, operand 0 of the addresses; the tensor itself may
// be a view, operand 1. Elements share words with others that stay, hence the atomics.
// needs: memory/grid, torch/items, torch/address/strided
@group(0) @binding(x) var<storage, read> x: array<u32>;
@group(0) @binding(result) var<storage, read_write> result: array<atomic<u32>>;

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>,
        @builtin(local_invocation_index) lane: u32) {
    let w = group_number(group, groups) * 256u + lane;
    let i = w / WORDS;
    if (i >= sizes.count) {
        return;
    }
    let to = address(i, 0u);
    let origin = address(i, 1u);
    let bits = moved(x[word_of(origin, w)], origin, to);
    let place = word_of(to, w);
    if (ITEM_BITS >= 32u) {
        atomicStore(&result[place], bits);
        return;
    }
    let others = ~(((1u << (ITEM_BITS % 32u)) - 1u) << (to % LANES * ITEM_BITS));
    atomicAnd(&result[place], others);
    atomicOr(&result[place], bits);
}
