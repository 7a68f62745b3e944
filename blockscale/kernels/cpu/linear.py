# SPDX-License-Identifier: BSD-3-Clause
"""x @ weight.T: integers times integers where the formats allow, else decoded weights."""

from functools import cache
from typing import Any

import torch
from torch import Tensor

from blockscale.core.operand import UNQUANTIZED, Operand, Quantizer
from blockscale.core.parse import parse
from blockscale.core.scales import TwoLevel
from blockscale.kernels.cpu.fake_quantize import fake_quantize
from blockscale.kernels.cpu.native import DTYPES, addresses, floats, known, native, threads
from blockscale.kernels.cpu.prepack import prepared
from blockscale.kernels.operand import in_order, new
from blockscale.kernels.registry import kernel

WHOLE_ROW = 2**62


@kernel("linear", backend="cpu", supports=known)
def linear(
    x: Tensor, weight: Operand, bias: Tensor | None = None, input: Quantizer = UNQUANTIZED
) -> Tensor:
    """As ops.linear.linear."""
    x, dtype = floats(x)
    n, (*rows, k) = weight.codes.shape[0], x.shape
    y = new((*rows, n), x.dtype)
    offset = None if bias is None else float_bias(bias, n)
    count = y.numel()
    if not count or not k:
        return y.zero_() if offset is None else y.copy_(offset)
    if k != weight.size:
        raise ValueError(f"expected x of shape [..., {weight.size}], found {tuple(x.shape)}")
    ready = prepared(weight)
    if input.fmt:
        block = row_block(input.fmt, x.ndim)
        if block is not None and as_integers(ready, x, block, input, offset, y):
            return y
        x = fake_quantize(x.to(torch.float32), input)
        dtype = DTYPES[torch.float32]
    ready.floats(x.data_ptr(), dtype, count // n, *_to(offset, y))
    return y


def float_bias(bias: Tensor, n: int) -> Tensor:
    """The bias [n] as the kernels add it."""
    if bias.dtype is torch.float32 and bias.shape == (n,):
        return in_order(bias)
    return in_order(bias.to(torch.float32).expand(n))


@cache
def row_block(fmt: str, rank: int) -> int | None:
    """How many elements of a row share a scale; 0 if all of x does.

    None for any other block, and for formats that integer arithmetic does not take.
    """
    form = parse(fmt)
    if form.offset or form.zero or isinstance(form.scale, TwoLevel):
        return None
    *rows, size = form.block.sizes_for(rank)
    if not any((*rows, size)):
        return 0
    return (size or WHOLE_ROW) if all(each == 1 for each in rows) else None


def as_integers(
    ready: Any, x: Tensor, block: int, by: Quantizer, bias: Tensor | None, y: Tensor
) -> bool:
    """Whether integer arithmetic could give y = x @ weight.T + bias, and did."""
    form, scale, zero_point = native(by.fmt), 0, 0
    if by.scale is not None:
        if block:
            return False
        parts = form.checked_parts(x.shape, by.scale, by.zero_point, by.outer)
        scale, _, zero_point, _ = addresses(parts)
    rows = y.numel() // y.shape[-1]
    done: bool = ready.integers(
        form.handle, x.data_ptr(), DTYPES[x.dtype], rows, block, scale, zero_point, *_to(bias, y)
    )
    return done


def _to(bias: Tensor | None, y: Tensor) -> tuple[int, int, int, int]:
    """Where results go, and on how many threads."""
    return 0 if bias is None else bias.data_ptr(), y.data_ptr(), DTYPES[y.dtype], threads()
