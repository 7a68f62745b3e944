# SPDX-License-Identifier: BSD-3-Clause
"""Where floats come in and go out: the only integer ops that know any."""

import torch
from torch import Tensor

from blockscale.core.arithmetic.precision import pow2
from blockscale.core.parse import parse
from blockscale.core.rounding import DETERMINISTIC
from blockscale.ops.integer.define import integer_op


@integer_op
def quantize(x: Tensor, exponent: int, zero: int, fmt: str) -> Tensor:
    """Floats [...] -> codes [...] of fmt, one an element: clamp(round(x / 2^exponent) + zero).

    As `bs.quantize` under that scale, bit for bit; NaN is 0.
    """
    form = parse(fmt)
    step = pow2(torch.full((), exponent, dtype=torch.int32))
    point = torch.full((), zero, dtype=torch.int32) if form.asym else None
    y = x.to(torch.float32) / step
    return form.element.encode(y, DETERMINISTIC[form.rounding], point, form.wide)


@integer_op
def dequantize(x: Tensor, zero: int, exponent: int) -> Tensor:
    """Codes or sums [...] -> (x - zero) * 2^exponent [...] float32, rounded once, in order."""
    wide = (x.to(torch.int64) - zero).to(torch.float32).contiguous()
    return wide * pow2(torch.full((), exponent, dtype=torch.int32))
