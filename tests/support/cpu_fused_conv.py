# SPDX-License-Identifier: BSD-3-Clause
"""What the tests of several files share with
tests/kernels/cpu/test_fused_conv.py: `asked`, `close`.
"""

import torch
from torch import Tensor

import blockscale as bs
from blockscale.core.operand import UNQUANTIZED, Value
from blockscale.kernels.registry import supporting
from blockscale.ops import primitives as P
from blockscale.ops.fused import FUSED

CONV = FUSED["conv"]


def asked(x: Value, weight: Value, settings: dict) -> bool:
    """Whether the kernel takes this call."""
    values = (*settings.values(), False, (), "", torch.float32, UNQUANTIZED)
    with bs.use("cpu"):  # loads the kernels
        kernel = supporting("fused_conv", "cpu", (x.fmt, weight.fmt), (x, weight, *values))
    return kernel is not None


def close(x: Value, weight: Value, y: Tensor, settings: dict) -> None:
    """Within the tolerance; what the op makes of magnitudes says how large it is."""
    with bs.use("reference"):
        values, dense = (P.dequantize(v.operand, torch.float32) for v in (x, weight))
        exact = CONV(Value(values), Value(dense), **settings)[0]
        sizes = settings | {"bias": settings["bias"].abs()}
        size = CONV(Value(values.abs()), Value(dense.abs()), **sizes)[0]
    assert (y.shape, y.dtype, y.is_contiguous()) == (exact.shape, torch.float32, True)
    assert ((y - exact).abs() <= 2 * CONV.ulps * 2.0**-24 * size).all()
