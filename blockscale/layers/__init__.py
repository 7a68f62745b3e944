# SPDX-License-Identifier: BSD-3-Clause
"""Quantized layers: packed codes and full-rank scales in plain buffers.

One kind of layer a file; each has `replacement(kind)`, the quantized class that takes the place of
a float one, or None, so that adding a kind takes one new file. `apply` puts them into a model.
"""
