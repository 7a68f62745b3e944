# SPDX-License-Identifier: BSD-3-Clause
"""Weights whose values are rounded to one bfloat16 each, for many rows of x, by the library.

That is the weight that a bfloat16 layer has. It costs one pass over the weight, which many rows
hide; kernels that keep the values of scaled blocks exact multiply the sums of each block instead,
and take half as long again (docs/cuda_linear.md).
"""

from functools import cache

import torch
from torch import Tensor

from blockscale.core.operand import Operand
from blockscale.core.parse import parse
from blockscale.kernels.cuda.matmul.composed import offsets
from blockscale.kernels.cuda.matmul.dense import AT_ONCE, by_library
from blockscale.kernels.cuda.matmul.finish import Ends
from blockscale.kernels.cuda.matmul.operands import OutputFactors, exact_products
from blockscale.kernels.cuda.matmul.reading import reading
from blockscale.kernels.cuda.quantize import dequantize

LEAST = 512  # rows of x, of what nothing below names; all are measured (docs/cuda_linear.md)
_OFFSETS = 256  # of offsets and float zero points, which else are products of their own
_LARGE_BLOCKS = 1024  # of blocks that the kernels scale in passing
_LARGE = 128  # codes of such a block
_WIDEST = 8  # bits of an element: the values of larger ones are finer than what is lost


def takes(x: Tensor, w: Operand, dtype: torch.dtype) -> bool:
    """Whether x [rows, k] and the result allow what is lost, and it gains something."""
    if not x.dtype is dtype is torch.bfloat16 or exact_products() == "exact":
        return False
    least = least_rows(w.fmt, w.size)
    return least is not None and x.shape[0] >= least


@cache
def least_rows(spelling: str, k: int) -> int | None:
    """From how many rows on this is faster than what keeps a weight's values exact; None: never."""
    fmt = parse(spelling)
    if fmt.bits > _WIDEST:
        return None
    if fmt.offset is not None or fmt.zero is not None:
        return _OFFSETS if offsets.with_zero_points(spelling, k) else 1
    r = reading(spelling, k)
    if r is None:
        return 1
    if r.further:
        return LEAST
    if not r.per_block:
        return None
    return _LARGE_BLOCKS if r.width >= _LARGE else LEAST


def rounded(x: Tensor, w: Operand, ends: Ends, dtype: torch.dtype) -> Tensor:
    """x [rows, k] @ weight.T -> [rows, n] of dtype, of what `takes` allows."""
    n, k = w.codes.shape[0], x.shape[1]
    apart = all(part.shape[0] == n for part in (w.scale, *(w.more or ())))
    step = max(AT_ONCE // (2 * k), 1) if apart else n

    def values(first: int, last: int) -> Tensor:
        return dequantize(w if step >= n else _rows(w, first, last), torch.bfloat16)

    return by_library(x, n, values, step, OutputFactors(None, 0), ends, dtype)


def _rows(w: Operand, first: int, last: int) -> Operand:
    """Some rows of a weight with scales for each row."""
    return w._replace(
        codes=w.codes[first:last],
        scale=w.scale[first:last],
        zero_point=None if w.zero_point is None else w.zero_point[first:last],
        outer=w.outer if w.outer is None or w.outer.numel() == 1 else w.outer[first:last],
        more=None if w.more is None else [part[first:last] for part in w.more],
    )
