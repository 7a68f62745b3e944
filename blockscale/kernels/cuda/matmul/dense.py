# SPDX-License-Identifier: BSD-3-Clause
"""The way "dense": the weight's codes become bfloat16 in memory, and the library multiplies.

For many rows of x. Codes of at most 8 bits, times scales where these are powers of two or few bits,
are exact in bfloat16; what is left of the scale meets the sums. The memory is given back after the
call.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from blockscale.core.operand import Operand
from blockscale.core.parse import parse
from blockscale.core.reference import QParams
from blockscale.core.scale import FloatScale, PowerOfTwo
from blockscale.kernels.cuda import interpreting
from blockscale.kernels.cuda.matmul.finish import Ends, add_up
from blockscale.kernels.cuda.matmul.operands import OutputFactors, Weight, columns, output_factors
from blockscale.kernels.cuda.matmul.order import PARTS, in_parts
from blockscale.kernels.cuda.matmul.reading import Reading
from blockscale.kernels.cuda.primitives import launch
from blockscale.kernels.cuda.primitives.decoding import decode_tile
from blockscale.kernels.cuda.primitives.plan import form, plan
from blockscale.kernels.cuda.quantize import dequantize

_UNFLUSHED = 16384  # products summed up there; of so many positive ones 63 of 64 units were lost
AT_ONCE = 1 << 30  # bytes of bfloat16 weights at a time, where nothing else is said


class DenseSettings(NamedTuple):
    """outputs: rows of the weight that are decoded at a time; 0 for as many as fit into 1 GiB."""

    outputs: int = 0

    @classmethod
    def read(cls, numbers: Sequence[int]) -> "DenseSettings":
        """The settings of a table's entry, which may have no numbers."""
        return cls(columns(numbers)[1]) if numbers else cls()

    def entry(self) -> tuple[int, ...]:
        """The numbers that a table has of them."""
        return (0, self.outputs, 0, 0, 0, 1, 1)


TO_MEASURE = (DenseSettings(0), DenseSettings(2048), DenseSettings(4096))


def exact(
    weight: Weight, fmt: str, r: Reading, k: int, first: int = 0, last: int | None = None
) -> Tensor:
    """Rows first ... last of the weight as bfloat16 [rows, k], without the factors that the sums
    get (`output_factors`, or those of blocks)."""
    form = parse(fmt)
    scale, outer = weight.scale, weight.outer
    if isinstance(form.scale, FloatScale):
        scale = torch.ones_like(scale)
    elif not r.width and isinstance(form.scale, PowerOfTwo):
        one = 127 + form.fraction_bits if form.scale.byte else 1
        scale = torch.full_like(scale, one)
    elif outer is not None:
        outer = torch.ones_like(outer)
    zero, codes = weight.zero_point, weight.codes
    if (first, last) != (0, None) and r.height == 1:
        scale = scale[first:last]
        zero = zero if zero is None else zero[first:last]
        outer = outer if outer is None or outer.numel() == 1 else outer[first:last]
    codes = codes[first:last]
    if r.element.family == "codebook":
        return decoded(codes, scale, outer, fmt, r, k)
    return dequantize(Operand(codes, scale, zero, outer, fmt, k), torch.bfloat16)


def decoded(
    codes: Tensor, scale: Tensor, outer: Tensor | None, fmt: str, r: Reading, k: int
) -> Tensor:
    """As dequantize, of the table that `r` reads codes by."""
    values = torch.empty((codes.shape[0], k), dtype=torch.bfloat16, device=codes.device)
    steps = plan(fmt, tuple(values.shape), "decode", True, 0, 2)
    assert steps is not None
    parts = form(fmt).per_block(QParams(scale, outer))
    count = 1 if parts.outer is None else parts.outer.numel()
    launch(
        decode_tile, steps._replace(spec=r.spec), codes, codes, values, parts.scale, parts.outer,
        None, None, count, k,
    )  # fmt: skip
    return values


def dense(
    x: Tensor,
    weight: Weight,
    fmt: str,
    r: Reading,
    ends: Ends,
    settings: DenseSettings,
    dtype: torch.dtype,
) -> Tensor:
    """x [rows, k] @ weight.T -> [rows, n] of dtype, by the library's product of bfloat16."""
    n, k = weight.codes.shape[0], x.shape[1]
    step = settings.outputs or max(AT_ONCE // (2 * k), 1)
    step = step if r.height == 1 else n

    def values(first: int, last: int) -> Tensor:
        return exact(weight, fmt, r, k, *((first, last) if step < n else ()))

    return by_library(x, n, values, step, output_factors(weight, fmt, r), ends, dtype)


def by_library(
    x: Tensor,
    n: int,
    values: Callable[[int, int], Tensor],
    step: int,
    factors: OutputFactors,
    ends: Ends,
    dtype: torch.dtype,
) -> Tensor:
    """x [rows, k] @ weight.T, times the factors of outputs -> [rows, n] of dtype.

    values: the rows first ... last of the weight [n, k], bfloat16; step: how many at a time
    """
    ready = in_parts(x)
    plain = _plain(x, factors, ends, dtype)
    y = x.new_empty((x.shape[0], n), dtype=dtype)
    for first in range(0, n, step):
        last = min(first + step, n)
        w = values(first, last)
        bias = None if ends.bias is None else ends.bias[first:last]
        to = y[:, first:last]
        if plain and bias is None:
            torch.mm(ready, w.t(), out=to)
        elif plain:
            to.copy_(torch.addmm(bias, ready, w.t()))  # type: ignore[arg-type]
        else:
            some = factors.values[first:last] if factors.stride else factors.values  # type: ignore[index]
            some_factors = OutputFactors(some, factors.stride)
            add_up(_sums(ready, w), PARTS[x.dtype], Ends(ends.x_row, bias), to, some_factors)
        del w  # so that the next rows take its place in the cache
    return y


def _plain(x: Tensor, factors: OutputFactors, ends: Ends, dtype: torch.dtype) -> bool:
    """Whether the library's own result is the result: nothing is left to finish in float32."""
    alone = factors.values is None and ends.x_row is None and x.dtype is dtype is torch.bfloat16
    return alone and (ends.bias is None or ends.bias.dtype is dtype) and not interpreting()


def _sums(x: Tensor, w: Tensor) -> Tensor:
    """x @ w.T in float32, not rounded to bfloat16. Tensor cores truncate: not too much at once."""
    if interpreting():
        return x.to(torch.float32) @ w.to(torch.float32).t()
    sums = torch.mm(x[:, :_UNFLUSHED], w[:, :_UNFLUSHED].t(), out_dtype=torch.float32)
    for first in range(_UNFLUSHED, x.shape[1], _UNFLUSHED):
        last = first + _UNFLUSHED
        sums += torch.mm(x[:, first:last], w[:, first:last].t(), out_dtype=torch.float32)
    return sums
