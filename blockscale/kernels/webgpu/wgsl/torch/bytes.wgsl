// The first operand, a tensor of bytes that count from 0 or are true or false, as floats.
// needs: torch/address/{address}
@group(0) @binding(x) var<storage, read> x: array<u32>;

fn first(i: u32) -> u32 {
    let at = address(i, 0u);
    return bitcast<u32>(f32(extractBits(x[at / 4u], at % 4u * 8u, 8u)));
}
