// A device that takes the liberties of WGSL.
// needs: hardware/operations
const EXACT = false; // whether every operation is that of IEEE 754, on all numbers
