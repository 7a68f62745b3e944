// SPDX-License-Identifier: BSD-3-Clause
// Values of codes that follow one another, EACH units of 16 bytes an invocation, a workgroup apart:
// all is read before anything is computed. Units share a step. What needs exact arithmetic of
// integers is left for the end.
// needs: memory/grid, memory/load/fours_in_stream, blocks/{blocks}, stored_params/step, code/{how}
// needs: memory/float/{dtype}, fast_path_memory/narrow/{narrow}
@group(0) @binding(values) var<storage, read_write> values: array<vec4<u32>>;

fn unit_of_group(first: u32, k: u32, lane: u32) -> u32 {
    return min(first + k * GROUP + lane, (sizes.bound - 1u) / UNIT);
}

@compute @workgroup_size(GROUP)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>,
        @builtin(local_invocation_index) lane: u32) {
    let first = group_number(group, groups) * GROUP * EACH;
    var low: array<vec4<u32>, EACH>;
    var high: array<vec4<u32>, EACH>;
    var steps: array<Step, EACH>;
    for (var k = 0u; k < EACH; k++) {
        let i = unit_of_group(first, k, lane) * UNIT;
        low[k] = codes4(i);
        if (UNIT == 8u) {
            high[k] = codes4(i + 4u);
        }
        steps[k] = step_at(block_of(sizes.first + i));
    }
    prepare_values(lane);
    var rare = 0u;
    for (var k = 0u; k < EACH; k++) {
        let unit = first + k * GROUP + lane;
        let s = steps[k];
        let found = four_decoded(low[k], s);
        var sure = s.ordinary && found.sure;
        var written = four_products(found.values, vec4(s.bits));
        if (UNIT == 8u) {
            let more = four_decoded(high[k], s);
            sure = sure && more.sure;
            written = narrowed8(written, four_products(more.values, vec4(s.bits)));
        }
        if (unit * UNIT < sizes.bound) {
            if (sure) {
                values[unit] = written;
            } else {
                rare |= 1u << k;
            }
        }
    }
    while (rare != 0u) {
        let k = firstTrailingBit(rare);
        rare &= rare - 1u;
        let unit = first + k * GROUP + lane;
        let s = step_at(block_of(sizes.first + unit * UNIT));
        var word = vec4(0u);
        for (var i = 0u; i < UNIT; i++) {
            let value = narrow(value_of(code_at(unit * UNIT + i), s));
            word[i * 4u / UNIT] |= value << (i % (UNIT / 4u) * 16u);
        }
        values[unit] = word;
    }
}
