"""Scales and offsets that are quantized themselves, and those of stacks of matrices."""
