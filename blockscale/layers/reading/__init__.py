"""Reads of quantized weights by code that is not the layer's own."""
