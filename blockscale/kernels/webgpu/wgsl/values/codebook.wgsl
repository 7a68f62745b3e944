// Values from a table in the workgroup's memory, whose 16 words lie in as many banks.
// needs: element/{element}, hardware/{hardware}
@group(0) @binding(value_table) var<storage, read> value_table: array<u32>;
var<workgroup> values_of_codes: array<u32, 16>;

struct Decoded {
    values: vec4<u32>,
    sure: bool, // they are right, and normal or 0
}

fn prepare_values(lane: u32) {
    if (lane < 16u) {
        values_of_codes[lane] = value_table[lane];
    }
    workgroupBarrier();
}

fn four_decoded(codes: vec4<u32>, s: Step) -> Decoded {
    let found = vec4(values_of_codes[codes.x], values_of_codes[codes.y], values_of_codes[codes.z],
                     values_of_codes[codes.w]);
    return Decoded(found, !FAR_VALUES);
}
