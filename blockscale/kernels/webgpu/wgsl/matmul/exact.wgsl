// The sum of products by integers alone: for subnormal, huge and missing numbers.
// needs: bits/multiply, bits/add, matmul/left, matmul/right/{right}
fn exact_sum(batch: u32, m: u32, n: u32, start: u32, stride: u32) -> u32 {
    var sum = 0u;
    for (var k = start; k < sizes.inner; k += stride) {
        let a = left_of(batch, m, k);
        let b = right_of(batch, n, k);
        let nothing = (a & 0x7fffffffu) == 0u || (b & 0x7fffffffu) == 0u;
        if (!nothing || max(a & 0x7fffffffu, b & 0x7fffffffu) >= 0x7f800000u) {
            sum = add(sum, multiply(a, b));
        }
    }
    return sum;
}
