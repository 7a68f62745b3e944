// Numbers of a tensor of bfloat16.
// needs: bits/half
const FLOAT_BITS: u32 = 16u;

fn widen(half: u32) -> u32 {
    return widen_bfloat16(half);
}

fn narrow(x: u32) -> u32 {
    return narrow_bfloat16(x);
}
