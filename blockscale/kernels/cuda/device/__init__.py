"""Device code that every Triton kernel shares: elements, scales, tiles, lanes, random numbers."""
