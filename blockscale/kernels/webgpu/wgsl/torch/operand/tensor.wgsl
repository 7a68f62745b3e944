// The second operand is a tensor.
// needs: torch/lanes, torch/address/{address}
@group(0) @binding(y) var<storage, read> y: array<u32>;

fn second(i: u32) -> u32 {
    let at = address(i, 1u);
    return widen(extractBits(y[at / LANES], at % LANES * FLOAT_BITS, FLOAT_BITS));
}
