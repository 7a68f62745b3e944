"""Quantized tables of which bags of rows are summed."""
