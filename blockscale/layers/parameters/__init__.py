"""Quantized parameters that belong to no layer."""
