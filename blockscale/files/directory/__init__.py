"""A model's whole directory, quantized into another one that appears whole or not at all."""
