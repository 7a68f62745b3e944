// How many numbers a word has.
// needs: float/{float}
const LANES: u32 = 32u / FLOAT_BITS;
