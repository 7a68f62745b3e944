// What is chosen for a block (docs/numerics.md, section 3).
// needs: statistics/range, choose/mean, choose/numerator/{numerator}
struct Chosen {
    scale: u32, // as step_of takes it: a byte, or the float32 that the stored one is
    zero: i32, // an integer, or the bits of a float32
    offset: u32, // float32
}
