// A device that takes none of WGSL's liberties (gpu/probe.py): what it computes needs no check.
// needs: hardware/operations
const EXACT = true;
