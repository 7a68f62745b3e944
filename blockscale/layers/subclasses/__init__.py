# SPDX-License-Identifier: BSD-3-Clause
"""Subclasses of float layers, quantized as what they are: their class and their forward stay."""

from blockscale.layers.subclasses.quantized import computes_as_parent as computes_as_parent
from blockscale.layers.subclasses.quantized import quantized_subclass as quantized_subclass
