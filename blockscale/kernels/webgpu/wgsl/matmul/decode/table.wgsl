// The values of all codes, at hand in the workgroup's memory.
// needs: matmul/decode/unit
@group(0) @binding(values) var<storage, read> values: array<u32>;
var<workgroup> table: array<f32, 1u << BITS>;

fn prepare_decode(lane: u32) {
    if (lane < 1u << BITS) {
        table[lane] = bitcast<f32>(values[lane]);
    }
}

fn values_of(patterns: vec4<u32>, zero: f32) -> vec4<f32> {
    return vec4(table[patterns.x], table[patterns.y], table[patterns.z], table[patterns.w]) - zero;
}

fn unit_of(word: u32, zero: f32) -> Unit {
    return split_unit(word, zero);
}

fn any_reserved(word: u32) -> bool {
    return false; // they are NaN in the table
}
