// Values narrowed to 16 bits, two a word.
// needs: float/{dtype}
@group(0) @binding(values) var<storage, read_write> values: array<vec2<u32>>;

fn store4(quad: u32, four: vec4<u32>) {
    values[quad] = vec2(narrow(four.x) | (narrow(four.y) << 16u),
                        narrow(four.z) | (narrow(four.w) << 16u));
}
