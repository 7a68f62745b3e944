# SPDX-License-Identifier: BSD-3-Clause
"""From the sums of products to the result: factors of rows and outputs, bias, rounding, memory.

Every way to multiply ends here. A kernel that sums up the whole of k for one bfloat16 part of x
finishes its own sums; where k or x is divided among programs, each leaves partial sums in float32,
and `add_up` starts the kernel that adds these in a fixed order and finishes them.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from blockscale.kernels.cuda.device.numerics import narrow
from blockscale.kernels.cuda.matmul.operands import OutputFactors
from blockscale.kernels.cuda.relaunch import cdiv, direct, power_of_2


class Ends(NamedTuple):
    """What finishes the sums: factors of the rows of x, float32 [rows], and a bias [n]."""

    x_row: Tensor | None
    bias: Tensor | None


NO_ENDS = Ends(None, None)
NO_FACTORS = OutputFactors(None, 0)


class ProductMemory(NamedTuple):
    """The memory of a product.

    y: what the call returns, [rows, n] in its dtype
    sums: what kernels write to: y itself, or partial sums, float32 [count, rows, n]
    """

    y: Tensor
    sums: Tensor

    @property
    def whole(self) -> bool:
        """Whether kernels finish their own sums."""
        return self.sums is self.y

    def finish(self, ends: Ends) -> Tensor:
        """y, once the partial sums are added up, if there are any."""
        return self.y if self.whole else add_up(self.sums, self.sums.shape[0], ends, self.y)


def result(x: Tensor, n: int, count: int, dtype: torch.dtype) -> ProductMemory:
    """Memory for x [rows, k] times a weight [n, k] of which each sum is `count` partial sums."""
    rows = x.shape[0]
    y = x.new_empty((rows, n), dtype=dtype)
    if count == 1:
        return ProductMemory(y, y)
    return ProductMemory(y, x.new_empty((count, rows, n), dtype=torch.float32))


def add_up(
    sums: Tensor, count: int, ends: Ends, y: Tensor, factors: OutputFactors = NO_FACTORS
) -> Tensor:
    """Partial sums [count, rows, n], or [count * rows, n], added, finished and written to y.

    y [rows, n] may be some columns of a wider tensor. Returns y.
    """
    rows, n = y.shape
    block = min(power_of_2(n), 1024)
    direct(add_partial_sums)[(rows, cdiv(n, block))](
        sums, factors.values, ends.x_row, ends.bias, y, rows, n, factors.stride, y.stride(0),
        count=count, BLOCK=block,
    )  # fmt: skip
    return y


@triton.jit
def times_outputs(sums, factors, output, stride):
    """Sums [outputs, rows] times the factors [n] or [1] of their outputs, where there are any."""
    if factors is not None:
        sums *= tl.expand_dims(tl.load(factors + output * stride), 1)
    return sums


@triton.jit
def finish_sums(sums, x_row, bias, row, output, rows, n, ROWS: tl.constexpr):
    """Float32 sums times the factors of their rows of x, with the bias of their outputs.

    x_row: float32 [rows] or None, bias: [n] or None
    row, output: which ones the sums are of, int32 vectors, for the dimensions ROWS and 1 - ROWS
        of `sums`; where ROWS is None, sums [outputs] are of one row, and `row` is its number
    """
    if x_row is not None:
        if ROWS is None:
            sums *= tl.load(x_row + row)
        else:
            by = tl.load(x_row + row, mask=row < rows, other=0.0)
            sums *= tl.expand_dims(by, 1 - ROWS)
    if bias is not None:
        offset = tl.load(bias + output, mask=output < n, other=0.0).to(tl.float32)
        if ROWS is None:
            sums += offset
        else:
            sums += tl.expand_dims(offset, ROWS)
    return sums


@triton.jit
def write(sums, x_row, bias, out, row, output, rows, n, part, LAST: tl.constexpr):
    """Sums [outputs, rows] -> out: finished if LAST, else as the partial sums of number `part`."""
    mask = tl.expand_dims(row < rows, 0) & tl.expand_dims(output < n, 1)
    index = tl.expand_dims(row, 0).to(tl.int64) * n + tl.expand_dims(output, 1)
    if LAST:
        sums = finish_sums(sums, x_row, bias, row, output, rows, n, 1)
        tl.store(out + index, narrow(sums, out.dtype.element_ty), mask=mask)
    else:
        tl.store(out + part * rows.to(tl.int64) * n + index, sums, mask=mask)


@triton.jit(do_not_specialize=["rows"])
def add_partial_sums(
    parts, factors, x_row, bias, out, rows, n, factor_stride, out_stride,
    count: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Partial sums -> result: added from the last to the first, times factors, with bias.

    parts: float32 [count, rows, n]; out: [rows, n], its rows out_stride apart
    factors: float32 [n] or [1] of the outputs, factor_stride apart; x_row: float32 [rows];
    bias: [n]; each of the three may be None
    A program has BLOCK outputs of one row.
    """
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = column < n
    at = parts + row * n + column
    size = rows.to(tl.int64) * n
    sums = tl.load(at + (count - 1) * size, mask=mask, other=0.0)
    for i in tl.static_range(1, count):
        sums += tl.load(at + (count - 1 - i) * size, mask=mask, other=0.0)
    if factors is not None:
        sums *= tl.load(factors + column * factor_stride, mask=mask, other=0.0)
    sums = finish_sums(sums, x_row, bias, row, column, rows, n, None)
    tl.store(out + row * out_stride + column, narrow(sums, out.dtype.element_ty), mask=mask)
