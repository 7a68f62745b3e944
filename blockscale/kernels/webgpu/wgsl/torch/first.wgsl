// The first operand, a tensor of floats: its element that belongs to element `i` of the result.
// needs: torch/lanes, torch/address/{address}
@group(0) @binding(x) var<storage, read> x: array<u32>;

fn first(i: u32) -> u32 {
    let at = address(i, 0u);
    return widen(extractBits(x[at / LANES], at % LANES * FLOAT_BITS, FLOAT_BITS));
}
