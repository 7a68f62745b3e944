# SPDX-License-Identifier: BSD-3-Clause
"""What the tests of several files share with
tests/kernels/cpu/test_linear.py: `coded`, `ENDS`, `results`.
"""

import torch
from torch import Tensor

import blockscale as bs
from blockscale.core.operand import Quantizer, Value, operand, quantizer
from blockscale.core.parse import parse
from blockscale.core.reference import QParams
from blockscale.ops import primitives as P

# Formats that the kernel ends in, and others, which the primitives give.
ENDS = (
    *("uint8:tensor:fp32:asym", "int8:tensor:fp32", "int8:tensor:fp32:asym", "uint4:tensor:fp32"),
    *(
        "int3:tensor:fp32:full",
        "uint8:tensor:e8m0/ceil",
        "int8:tensor:pow2/floor",
        "uint1:tensor:fp32",
    ),
    *(
        "int8:tensor:fp32:recip",
        "uint8:tensor:bf16:asym",
        "ternary:tensor:fp32",
        "int7:tensor:fp16",
    ),
)


def coded(x: Tensor, fmt: str, qparams: QParams | None = None) -> Value:
    """x as codes, by the given scale or one chosen from it."""
    with bs.use("reference"):
        parts = qparams or P.from_list(P.choose_qparams(x, fmt), parse(fmt))
        codes = P.quantize(x, quantizer(parts, fmt))
    return Value(*operand(codes, parts, fmt, x.shape[-1]))


def results(y: Tensor, fmt: str) -> tuple[Quantizer, ...]:
    """A scale for results y, and with zero points some that lie elsewhere."""
    parts = P.from_list(P.choose_qparams(y * 0.7, fmt), parse(fmt))
    if parts.zero_point is None:
        return (quantizer(parts, fmt),)
    moved = (0, -40, 300, 2**19, -(2**22))
    each = [parts._replace(zero_point=torch.full_like(parts.zero_point, z)) for z in moved]
    return tuple(quantizer(p, fmt) for p in (parts, *each))
