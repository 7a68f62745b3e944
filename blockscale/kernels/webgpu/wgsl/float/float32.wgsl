// Numbers of a tensor of float32.
const FLOAT_BITS: u32 = 32u;

fn widen(x: u32) -> u32 {
    return x;
}

fn narrow(x: u32) -> u32 {
    return x;
}
