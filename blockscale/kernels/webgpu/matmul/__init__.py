"""Products on the GPU: floats with quantized weights or floats, few rows or many."""
