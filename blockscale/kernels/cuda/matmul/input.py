# SPDX-License-Identifier: BSD-3-Clause
"""What a linear layer multiplies the weight with: x itself, or what its input format leaves of it.

Where values are small codes times one scale a row, or times powers of two, bfloat16 holds them
exactly and the tensor cores take them as they are.
"""

from dataclasses import dataclass
from functools import cache
from math import prod

import torch
from torch import Tensor

from blockscale.core import reference
from blockscale.core.block import WHOLE
from blockscale.core.operand import Operand, Quantizer
from blockscale.core.parse import parse
from blockscale.core.reference import QParams
from blockscale.core.scale import PowerOfTwo
from blockscale.kernels.cuda.dequantize import dequantize
from blockscale.kernels.cuda.fake_quantize import fake_quantize
from blockscale.kernels.cuda.matmul.reading import is_bfloat16
from blockscale.kernels.cuda.quantize import choose_quantize, quantize


@dataclass(frozen=True)
class Values:
    """x [rows, k] in a dtype that holds it exactly, and a factor for each row, or None."""

    x: Tensor
    row: Tensor | None = None


@dataclass(frozen=True)
class Codes:
    """Packed codes [rows, bytes] of an element, and a float32 factor for each row [rows]."""

    packed: Tensor
    element: str
    row: Tensor
    size: int

    def values(self) -> Values:
        """The codes as bfloat16, which holds every one of at most 8 bits."""
        one = self.row.new_ones((1, 1))
        fmt = f"{self.element}:tensor:fp32"
        x = dequantize(Operand(self.packed, one, None, None, fmt, self.size), torch.bfloat16)
        return Values(x, self.row)


@cache
def kind(fmt: str, rank: int) -> str:
    """How x [...] of `rank` dimensions reads.

    "plain": as it is; "codes": as codes with a factor for each row; "powers": as bfloat16, which
    holds codes times powers of two; "float32": as values of any other format, which includes those
    whose elements nothing here knows
    """
    if not fmt:
        return "plain"
    form = parse(fmt)
    *rows, size = form.block.sizes_for(rank)
    one = size == WHOLE and (all(n == 1 for n in rows) or all(n == WHOLE for n in rows))
    if form.asym or form.offset is not None or form.bits > 8:
        return "float32"
    if isinstance(form.scale, PowerOfTwo):
        return "powers" if is_bfloat16(form) else "float32"
    return "codes" if one and is_bfloat16(form) else "float32"


def read(x: Tensor, by: Quantizer) -> Values | Codes:
    """x [..., k], quantized by the given scale or by one of its own -> what is multiplied."""
    how, k = kind(by.fmt, x.ndim), x.shape[-1]
    if how == "plain":
        return Values(x.reshape(-1, k))
    if how == "codes":
        return _codes(x, by)
    wide = x if x.dtype is torch.bfloat16 and how == "powers" else x.to(torch.float32)
    left = fake_quantize(wide, by).reshape(-1, k)
    return Values(left.to(torch.bfloat16) if how == "powers" else left)


def _codes(x: Tensor, by: Quantizer) -> Codes:
    form, k = by.format, x.shape[-1]
    scale, outer = by.scale, by.outer
    if scale is None:
        packed, scale, *rest = choose_quantize(x, by.fmt, by.seed)
        outer = rest[0] if rest else None
    else:
        packed = quantize(x, by)
    row = reference.step_of(QParams(scale, outer), form).reshape(-1)
    count = prod(x.shape[:-1])
    if row.numel() != count:
        row = row.expand(count).contiguous()
    return Codes(packed.reshape(count, -1), form.element.name, row, k)
