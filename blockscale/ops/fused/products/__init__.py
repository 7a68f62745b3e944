"""Sums of products, in float32: matrices, convolutions, attention, rows of tables."""
