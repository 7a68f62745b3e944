# SPDX-License-Identifier: BSD-3-Clause
"""The largest magnitude in each row of a quantized tensor."""

# Goes to:   blockscale/ops/largest.py
# Its test:  tests/ops/test_largest.py, with `samples(made)`: arguments for the op in any format.
# By itself: the torch op `blockscale::largest`, which takes the operand apart into tensors and
#            plain values; opcheck, torch.compile and torch.export; kernels of its name, where a
#            backend has one, and this body everywhere else. The body is also their oracle.

import torch
from torch import Tensor

from blockscale.core.operand import Operand
from blockscale.ops.gradient import not_differentiable
from blockscale.ops.op import op
from blockscale.ops.primitives import dequantize


def _shape(rows: Operand) -> Tensor:
    """Stands in for the body where only shapes count; needed because the body unpacks."""
    return rows.codes.new_empty(rows.codes.shape[:-1], dtype=torch.float32)


@op(shape=_shape)
def largest(rows: Operand) -> Tensor:
    """Rows of `size` codes [..., size] -> their largest magnitudes [...] float32, NaN for a NaN."""
    return dequantize.reference(rows, torch.float32).abs().amax(-1)


not_differentiable(largest, "its codes are fixed; train the float model with fake quantization")
