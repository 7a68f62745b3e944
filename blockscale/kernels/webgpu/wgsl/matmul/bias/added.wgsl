// A number is added to each output. BIAS_STORAGE: as in bits/storage.
// needs: bits/add, bits/storage
@group(0) @binding(bias) var<storage, read> bias: array<u32>;

fn with_bias(n: u32, y: u32) -> u32 {
    if (BIAS_STORAGE == 0u) {
        return add(y, bias[n]);
    }
    return add(y, widened(bias[n / 2u] >> (n % 2u * 16u) & 0xffffu, BIAS_STORAGE));
}
