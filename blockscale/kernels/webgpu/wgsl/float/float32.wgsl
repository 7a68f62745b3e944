// Numbers stored as float32: their own bits.
const FLOAT_BITS: u32 = 32u;

fn widen(stored: u32) -> u32 {
    return stored;
}

fn narrow(x: u32) -> u32 {
    return x;
}
