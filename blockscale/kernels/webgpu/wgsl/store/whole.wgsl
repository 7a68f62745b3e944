// Values of 32 bits.
@group(0) @binding(values) var<storage, read_write> values: array<vec4<u32>>;

fn store4(quad: u32, four: vec4<u32>) {
    values[quad] = four;
}
