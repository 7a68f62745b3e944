// A number is added to each output, stored as bfloat16.
// needs: bits/add, matmul/half/bfloat16
@group(0) @binding(bias) var<storage, read> bias: array<u32>;

fn with_bias(n: u32, y: u32) -> u32 {
    return add(y, bfloat16_bits(bias[n / 2u] >> (n % 2u * 16u) & 0xffffu));
}
