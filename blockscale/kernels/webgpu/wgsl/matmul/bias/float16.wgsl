// A number is added to each output, stored as float16.
// needs: bits/add, bits/half
@group(0) @binding(bias) var<storage, read> bias: array<u32>;

fn with_bias(n: u32, y: u32) -> u32 {
    return add(y, widen_float16(bias[n / 2u] >> (n % 2u * 16u) & 0xffffu));
}
