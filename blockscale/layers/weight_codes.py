# SPDX-License-Identifier: BSD-3-Clause
"""A weight's codes and scales by the fused kernel, and what a user should know of them.

One pass over memory chooses scales and codes. What the ledger says besides is read off its result:
a scale that cannot be stored as it was chosen is stored as the first or the last one that there
is, so only blocks whose stored scale is one of these are looked at by the reference.
"""

from collections.abc import Iterator
from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor

from blockscale.core import reference
from blockscale.core.arithmetic.precision import subnormals_kept
from blockscale.core.block import WHOLE
from blockscale.core.format import Format
from blockscale.core.joined_weights import standing_rows
from blockscale.core.reference import QParams
from blockscale.core.scale import FloatScale, PowerOfTwo
from blockscale.core.scales import TwoLevel
from blockscale.kernels.registry import find
from blockscale.layers.saturation import saturates
from blockscale.ops import primitives

_SLAB = 1 << 17  # elements that the reference looks at at a time: it takes up to 150 bytes for each


def has_kernel(fmt: Format, x: Tensor | None = None) -> bool:
    """Whether a fused kernel chooses scales and codes, of x where one is named."""
    if fmt.unchosen or fmt.element.learned:
        return False
    x = torch.empty(1, 1) if x is None else x
    arguments = (x, fmt.spelling, None)
    kernel = find("choose_quantize", (fmt.spelling,), x.device.type, arguments, composed=True)
    return kernel is not None


class Coded(NamedTuple):
    """Packed codes, and what stands beside them."""

    packed: Tensor
    qparams: QParams


def by_kernel(x: Tensor, fmt: Format, seed: Tensor | None, top: Tensor | None) -> Coded | None:
    """x [...] -> its codes and scales by the fused kernel; None where there is none for this.

    top: the largest numerator of all that share x's outer scale, [1, outer scales in a row], which
        rows that stand for the others bring to the kernel; None where x chooses its own
    """
    if not has_kernel(fmt, x) or not x.numel():
        return None
    if top is None:
        packed, *parts = primitives.choose_quantize(x, fmt.spelling, seed)
        return Coded(packed, primitives.from_list(parts, fmt))
    rows = _rows_for(x, fmt, top)
    if rows is None:
        return None
    packed, *parts = primitives.choose_quantize(torch.cat([x, rows]), fmt.spelling, seed)
    qparams = primitives.from_list(parts, fmt)
    count = fmt.block.scale_shape(tuple(x.shape))[0]
    return Coded(packed[: len(x)], qparams._replace(scale=qparams.scale[:count]))


def _rows_for(x: Tensor, fmt: Format, top: Tensor) -> Tensor | None:
    """Rows in x's dtype which hold `top`; None where rows below x cannot bring it to a kernel."""
    if x.ndim != 2 or len(top) != 1 or fmt.asym or fmt.offset is not None:
        return None  # a range of two ends may be a number that x's dtype does not have
    high = fmt.block.sizes_for(2)[0]
    if high == WHOLE or len(x) % high or "scale_offset" in fmt.parts:
        return None
    if fmt.stored((len(x) + high, x.shape[-1]))["outer"][1] != tuple(top.shape):
        return None
    rows = standing_rows(top, fmt, x.shape[-1])
    own = rows.to(x.dtype)
    return own if torch.equal(own.to(torch.float32), rows) else None


# What the ledger says of scales.


def clipped(x: Tensor, qparams: QParams, fmt: Format) -> int:
    """How many of the scales that were chosen for x lie outside of what can be stored."""
    if _inside(qparams.scale, fmt):
        return 0
    total = 0
    with subnormals_kept():
        for own, scale, outer in _pieces(x, qparams, fmt):
            if not _inside(scale, fmt):
                found = reference.ranges(own, fmt)
                total += int(saturates(found.low, found.high, fmt, outer).sum())
    return total


def _pieces(
    x: Tensor, qparams: QParams, fmt: Format
) -> Iterator[tuple[Tensor, Tensor, Tensor | None]]:
    """x a few rows of blocks at a time, with the scales of these and what they are codes under."""
    scale, outer = qparams.scale, qparams.outer
    dim = 1 if x.ndim > 2 and len(x) == 1 else 0
    size = WHOLE if fmt.block.flat or not x.ndim else fmt.block.sizes_for(x.ndim)[dim]
    shared = 1 if outer is None or not outer.ndim else outer.shape[dim]
    if size == WHOLE or shared not in (1, scale.shape[dim]):
        yield x, scale, outer
        return
    count = max(_SLAB * x.shape[dim] // x.numel() // size, 1)
    for start in range(0, scale.shape[dim], count):
        some = min(count, scale.shape[dim] - start)
        rows = min(some * size, x.shape[dim] - start * size)
        own = outer if outer is None or shared == 1 else outer.narrow(dim, start, some)
        yield x.narrow(dim, start * size, rows), scale.narrow(dim, start, some), own


def _inside(scale: Tensor, fmt: Format) -> bool:
    """Whether no stored scale is one that a scale out of range would be stored as."""
    low, high = _bounds(fmt)
    least, most = (float(end) for end in torch.aminmax(scale.abs() if scale.ndim else scale))
    return low < least and most < high


@cache
def _bounds(fmt: Format) -> tuple[float, float]:
    """Stored scales between these were chosen as they are stored: numbers, or codes in a byte.

    Codes of scales ascend with what they mean, those of NaN last.
    """
    scale = fmt.scale
    if isinstance(scale, FloatScale):
        return scale.low, scale.high
    if isinstance(scale, PowerOfTwo):
        return (0.0, 254.0) if scale.byte else (2.0**-126, 2.0**127)
    if isinstance(scale, TwoLevel):
        element = scale.inner.element  # the rule four_six stores up to 1.5 times as much
        low = element.smallest_normal * (1.5 if scale.compares else 1.0)
        ends = torch.tensor([low, torch.inf])
        high = 256.0 if element.nan_code is None else float(element.nan_code)
        return float(scale.encode(ends[:1])), high
    low_code, high_code = scale.store(torch.tensor([0.0, torch.inf])).tolist()
    return float(low_code), float(high_code)
