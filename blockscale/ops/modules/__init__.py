"""Quantized layers: packed codes and full-rank scales in plain buffers.

One kind of layer a file; each has `REPLACES`, which maps classes to the quantized class, so
that adding a kind takes one new file. `blockscale.ops.apply` puts them into a model.
"""
