# SPDX-License-Identifier: BSD-3-Clause
"""Reads of quantized weights by code that is not the layer's own."""
