// The first operand, a tensor of whole numbers of 32 or 64 bits, as floats.
// needs: torch/address/{address}, bits/wide
@group(0) @binding(x) var<storage, read> x: array<u32>;

fn first(i: u32) -> u32 {
    let at = address(i, 0u);
    var number = vec2(x[at], u32(bitcast<i32>(x[at]) >> 31u));
    if (ITEM_BITS == 64u) {
        number = vec2(x[at * 2u], x[at * 2u + 1u]);
    }
    if (bitcast<i32>(number.y) < 0) {
        return wide_to_float(wide_sum(~number, vec2(1u, 0u))) | 0x80000000u;
    }
    return wide_to_float(number);
}
