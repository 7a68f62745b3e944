# SPDX-License-Identifier: BSD-3-Clause
"""Products that are put together from others: of offsets, and of values that are no bfloat16."""

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from blockscale.core.block import WHOLE
from blockscale.core.operand import Operand
from blockscale.core.parse import parse
from blockscale.core.scale import FloatScale
from blockscale.core.scales import TwoLevel
from blockscale.kernels.cuda.device.numerics import MAGIC, narrow
from blockscale.kernels.cuda.device.scale import load_scale
from blockscale.kernels.cuda.matmul.dense import AT_ONCE, by_library
from blockscale.kernels.cuda.matmul.finish import Ends, add_up, finish_sums
from blockscale.kernels.cuda.matmul.operands import OutputFactors, Values, Weight, exact_products
from blockscale.kernels.cuda.matmul.reading import reading
from blockscale.kernels.cuda.quantize import decoded, dequantize
from blockscale.kernels.cuda.relaunch import cdiv, direct, power_of_2
from blockscale.kernels.cuda.spec import spec

# Integers with offsets, or with zero points z that are none: a product with whole zero points, and
# one of the sums of x with what is left.
#
#     code * step + b = (code - w) * step + rest,   w = b / -step rounded,   rest = w * step + b
#     (code - z) * step = (code - w) * step + rest,   w = z rounded,   rest = (w - z) * step
#
# A value is nearer to 0 than a step only where its code is w or next to it, so that neither product
# is much larger than theirs: sums of codes without zero points would cancel against those of b.

_COLUMNS = 256  # blocks of a program
Product = Callable[[Values, Weight, str, torch.dtype], Tensor]


@cache
def with_zero_points(spelling: str, k: int) -> str:
    """The format whose product with rows of k is one part of this one's; "" where there is none.

    What a code loses next to an offset is counted in values of the largest code: few bits, or
    steps with which these are exact.
    """
    form = parse(spelling)
    if form.offset is None and form.zero is None:
        return ""
    if not form.element.integer or isinstance(form.scale, TwoLevel):
        return ""
    exact = form.zero or not isinstance(form.scale, FloatScale) or form.scale.name != "fp32"
    if form.bits > (8 if exact else 4):
        return ""
    other = f"{form.element.name}:{form.block}:{form.scale}:asym"
    return other if reading(str(parse(other)), k) is not None else ""


def product(
    x: Values, w: Operand, other: str, bias: Tensor | None, dtype: torch.dtype, main: Product
) -> Tensor:
    """x [rows, k] @ weight.T -> [rows, n] of dtype.

    other: of `with_zero_points`; main: multiplies with a weight in that format
    """
    (rows, k), n = x.x.shape, w.codes.shape[0]
    zero, rest = recentre_weight(w)
    height, width = w.format.block.sizes_for(2)
    if height != 1:
        rest = rest.repeat_interleave(n if height == WHOLE else height, 0)[:n]
    plain = Weight(w.codes, w.scale, zero, None)
    sums = main(Values(x.x), plain, str(parse(other)), torch.float32)
    of_blocks = block_sums(x.x, k if width == WHOLE else width)
    y = sums.new_empty((rows, n), dtype=dtype)
    return with_rest(of_blocks, rest, sums, Ends(x.row, bias), y)


def block_sums(x: Tensor, width: int) -> Tensor:
    """x [rows, k] -> float32 [rows, blocks of `width`]: the sum of each."""
    rows, k = x.shape
    count, part = cdiv(k, width), min(power_of_2(width), 1024)
    sums = x.new_empty((rows, count), dtype=torch.float32)
    blocks = max(1, 2048 // part)
    direct(sum_blocks)[(rows, cdiv(count, blocks))](
        x, sums, k, count, x.stride(0), x.stride(1), width, PART=part, BLOCKS=blocks,
        PARTS=cdiv(width, part),
    )  # fmt: skip
    return sums


def with_rest(of_blocks: Tensor, rest: Tensor, sums: Tensor, ends: Ends, y: Tensor) -> Tensor:
    """sums [rows, n] + sums of blocks [rows, count] @ rest [n, count].T, float32, finished -> y.

    Returns y.
    """
    (rows, count), n = of_blocks.shape, rest.shape[0]
    some = min(max(power_of_2(count), 16), 32)  # as many as a product of the tensor cores takes
    high = min(max(power_of_2(rows), 16), 64)
    direct(multiply_rest)[(cdiv(n, 64), cdiv(rows, high))](
        of_blocks, rest, sums, ends.x_row, ends.bias, y, rows, n, count, rest.stride(0), HIGH=high,
        COUNT=some, STEPS=cdiv(count, some), num_warps=4,
    )  # fmt: skip
    return y


@triton.jit
def sum_blocks(
    x, out, k, count, stride, step, width,
    PART: tl.constexpr, BLOCKS: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    """As `block_sums`; a program has BLOCKS blocks of a row, PART elements at a time."""
    row = tl.program_id(0).to(tl.int64)
    block = tl.program_id(1) * BLOCKS + tl.arange(0, BLOCKS)
    sums = tl.zeros([BLOCKS], tl.float32)
    for part in range(PARTS):
        inside = part * PART + tl.arange(0, PART)
        at = block[:, None] * width + inside[None, :]
        there = (inside < width)[None, :] & (at < k)
        sums += tl.sum(
            tl.load(x + row * stride + at * step, mask=there, other=0.0).to(tl.float32), 1
        )
    tl.store(out + row * count + block, sums, mask=block < count)


@triton.jit(do_not_specialize=["rows"])
def multiply_rest(
    of_blocks, rest, first, x_row, bias, out, rows, n, count, stride,
    HIGH: tl.constexpr, COUNT: tl.constexpr, STEPS: tl.constexpr,
):  # fmt: skip
    """As `with_rest`; a program has 64 outputs of HIGH rows. Each number is two of 11 bits, for the
    tensor cores, which lose 12 units of 2^-24 of these products at most."""
    output = tl.program_id(0) * 64 + tl.arange(0, 64)
    row = tl.program_id(1) * HIGH + tl.arange(0, HIGH)
    own, mine = tl.minimum(output, n - 1).to(tl.int64), tl.minimum(row, rows - 1).to(tl.int64)
    sums = tl.zeros([HIGH, 64], tl.float32)
    for step in range(STEPS):
        at = step * COUNT + tl.arange(0, COUNT)
        there = at < count
        left = tl.load(
            of_blocks + mine[:, None] * count + at[None, :], mask=there[None, :], other=0.0
        )
        right = tl.load(rest + own[None, :] * stride + at[:, None], mask=there[:, None], other=0.0)
        sums = tl.dot(left, right, sums, input_precision="tf32x3")
    place = row[:, None].to(tl.int64) * n + output[None, :]
    there = (row < rows)[:, None] & (output < n)[None, :]
    sums += tl.load(first + place, mask=there, other=0.0)
    sums = finish_sums(sums, x_row, bias, row, output, rows, n, 0)
    tl.store(out + place, narrow(sums, out.dtype.element_ty), mask=there)


def recentre_weight(w: Operand) -> tuple[Tensor, Tensor]:
    """A weight with offsets, or zero points that are no integers -> zero points, int32, and what
    these leave, float32, of each block."""
    own = None if w.zero_point is None else w.zero_point.contiguous()
    offset = w.more[0].contiguous() if w.more else None
    zero = torch.empty(w.scale.shape, dtype=torch.int32, device=w.scale.device)
    rest = torch.empty(w.scale.shape, dtype=torch.float32, device=w.scale.device)
    count = w.scale.numel()
    run: Any = direct(recentre)[(cdiv(count, _COLUMNS),)]
    run(
        w.scale, own, offset, zero, rest, count, spec=spec(w.fmt), columns=_COLUMNS,
        enable_fp_fusion=False,
    )  # fmt: skip
    return zero, rest


@triton.jit
def recentre(
    scale, own, offset, zero, rest, count, spec: tl.constexpr, columns: tl.constexpr
):  # fmt: skip
    """Stored scales, and zero points of their own or offsets [count] -> whole zero points, and what
    remains: float32."""
    index = tl.program_id(0).to(tl.int64) * columns + tl.arange(0, columns)
    present = index < count
    unit = load_scale(scale, None, own, offset, index, present, index, spec)
    if spec.zero != "":
        near = unit.zero
    else:
        near = tl.div_rn(0.0 - unit.offset, unit.step)
    near = tl.where(near == near, near, 0.0)
    near = tl.minimum(tl.maximum(near, spec.element.low), spec.element.high)
    whole = (near + MAGIC) - MAGIC
    tl.store(zero + index, whole.to(tl.int32), mask=present)
    if spec.zero != "":
        residue = (whole - unit.zero) * unit.step
    else:
        residue = whole * unit.step + unit.offset
    tl.store(rest + index, residue, mask=present)


# Weights whose values are no bfloat16, for many rows of x: as two bfloat16 each, by the library.
#
# What the second one leaves of a value is at most 2^-17 of it, 128 units of 2^-24. Both products
# are float32: the library's sum of one of them and the other as bfloat16 was 1759 units off at k =
# 4096. Where x is bfloat16 and tensor cores add up all of k, k / 8 units are allowed, of which they
# lose 0.035 k themselves (docs/numerics.md, section 7; docs/cuda_linear.md).

LEAST_K = 4096  # of k


def takes_halves(x: Tensor, dtype: torch.dtype) -> bool:
    """Whether x [rows, k] and the result allow what is lost."""
    return x.dtype is dtype is torch.bfloat16 and x.shape[1] >= LEAST_K


def halves(x: Tensor, w: Operand, ends: Ends, dtype: torch.dtype) -> Tensor:
    """x [rows, k] @ weight.T -> [rows, n] of dtype, of what `takes` allows."""
    upper, lower = dequantize(w, torch.bfloat16), decoded(w, torch.bfloat16, "rest")
    (rows, _), n = x.shape, upper.shape[0]
    sums = x.new_empty((2, rows, n), dtype=torch.float32)
    for i, half in enumerate((upper, lower)):
        sums[i].copy_(product_of_half(x, half))
    return add_up(sums, 2, ends, x.new_empty((rows, n), dtype=dtype))


def product_of_half(x: Tensor, half: Tensor) -> Tensor:
    """x @ half.T in float32."""
    if not x.is_cuda:  # the interpreter's
        return x.to(torch.float32) @ half.to(torch.float32).t()
    return torch.mm(x, half.t(), out_dtype=torch.float32)


# Weights whose values are rounded to one bfloat16 each, for many rows of x, by the library.
#
# That is the weight that a bfloat16 layer has. It costs one pass over the weight, which many rows
# hide; kernels that keep the values of scaled blocks exact multiply the sums of each block instead,
# and take half as long again (docs/cuda_linear.md).

LEAST_ROWS = 512  # rows of x, of what nothing below names; all are measured (docs/cuda_linear.md)
_OFFSETS = 256  # of offsets and float zero points, which else are products of their own
_LARGE_BLOCKS = 1024  # of blocks that the kernels scale in passing
_LARGE = 128  # codes of such a block
_WIDEST = 8  # bits of an element: the values of larger ones are finer than what is lost


def takes_rounded(x: Tensor, w: Operand, dtype: torch.dtype) -> bool:
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
        return _OFFSETS if with_zero_points(spelling, k) else 1
    r = reading(spelling, k)
    if r is None:
        return 1
    if r.further:
        return LEAST_ROWS
    if not r.per_block:
        return None
    return _LARGE_BLOCKS if r.width >= _LARGE else LEAST_ROWS


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
