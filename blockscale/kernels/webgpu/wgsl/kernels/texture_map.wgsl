// SPDX-License-Identifier: BSD-3-Clause
// Texels -> texels, each component with the step of its block: numbers become codes, codes numbers,
// or numbers what is left of them. SHARED: the four components of a texel are in one block.
// needs: texture/texel/{texel}, texture/blocks/{texels}, texture/ops/{op}, rounding/random/{drawn}
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
