# SPDX-License-Identifier: BSD-3-Clause
"""Pools of largest values over codes of integers: the largest code is that of the largest value.

Nothing is decoded. Windows are taken apart by dimensions: the largest along one, then along the
next, each of as many shifted views as the window is wide. What the codes become then, other codes
or floats, is looked up in a table.
"""

from collections.abc import Sequence
from functools import reduce
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from blockscale.core.format import Format
from blockscale.core.operand import Value
from blockscale.core.parse import parse
from blockscale.kernels.cpu.fused import tables
from blockscale.kernels.registry import kernel


def supports(formats: tuple[Format, ...], arguments: tuple[Any, ...]) -> bool:
    """Integers of 8 bits under one scale, and results that a table has; no empty windows."""
    value, dtype = arguments[0], arguments[-2]
    if not tables.supports(formats, arguments):
        return False
    fmt = parse(value.fmt)
    ordered = fmt.element.integer and fmt.bits == 8 and fmt.span != "signed"
    return ordered and dtype == torch.float32


def pooled(codes: Tensor, count: int, settings: Sequence[Any]) -> Tensor:
    """codes [..., *size] of int8 or uint8 -> the largest of each window over the last `count`.

    settings: kernel_size, stride, padding, dilation, ceil_mode, as torch's max pools have them
    """
    *four, ceil = settings
    kernel, stride, padding, dilation = (_each(list(each), count) for each in four)
    for i in range(count):
        window = (kernel[i], (stride or kernel)[i], padding[i], dilation[i])
        codes = _along(codes, codes.ndim - count + i, window, ceil)
    return codes


def _each(given: list[int], count: int) -> list[int]:
    return given * count if len(given) == 1 else given


def _along(codes: Tensor, dim: int, window: tuple[int, int, int, int], ceil: bool) -> Tensor:
    """The largest along one dimension. Source of the sizes: torch, aten/native/Pool.h."""
    kernel, stride, padding, dilation = window
    size, reach = codes.shape[dim], dilation * (kernel - 1) + 1
    rest = size + 2 * padding - reach
    count = (-(-rest // stride) if ceil else rest // stride) + 1
    if ceil and (count - 1) * stride >= size + padding:
        count -= 1  # the last window begins in the picture or its padding before it
    behind = max((count - 1) * stride + reach - size - padding, 0)
    if padding or behind:
        ends = [0, 0] * (codes.ndim - 1 - dim) + [padding, behind]
        codes = F.pad(codes, ends, value=torch.iinfo(codes.dtype).min)
    last = (count - 1) * stride + 1
    views = [
        codes.narrow(dim, i * dilation, last)[(slice(None),) * dim + (slice(None, None, stride),)]
        for i in range(kernel)
    ]
    return reduce(torch.maximum, views)


def _register(op: str, count: int) -> None:
    @kernel(f"fused_{op}", backend="cpu", supports=supports)
    def run(value: Value, *rest: Any) -> list[Tensor]:
        """As the op of blockscale.ops.fused."""
        *settings, dtype, y = rest
        codes = pooled(value.data, count, settings).contiguous()
        made = value._replace(data=codes, size=codes.shape[-1])
        return tables.look_up(tables.Call("requantize", made, (), dtype, y))


for _count in (1, 2, 3):
    _register(f"max_pool{_count}d", _count)
