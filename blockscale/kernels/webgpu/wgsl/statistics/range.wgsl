// What the scale of a block is chosen from (docs/numerics.md, 3.1), float32 bits.
struct Range {
    low: u32,       // the smallest finite value
    high: u32,      // the largest; of means, that mean
    poisoned: bool, // a NaN or an infinity is in the block, and the scale can say so
}
