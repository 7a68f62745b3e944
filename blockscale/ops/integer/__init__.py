# SPDX-License-Identifier: BSD-3-Clause
"""Ops on integers alone: codes and sums go in, codes or sums come out, no float between.

What `bs.graph.lower(graph, "integer")` writes: a small closed set, `INTEGER_OPS`. Every op but
`integer_quantize` and `integer_dequantize`, the two doors, takes and gives integers only. Numbers
that stand beside codes are plain integers or tensors of integers (docs/integers.md has a table of
all ops with their attributes).
"""

from blockscale.core import import_all
from blockscale.ops.integer.define import INTEGER_OPS as INTEGER_OPS

import_all(__name__, __path__)
