# SPDX-License-Identifier: BSD-3-Clause
"""The two operands of a product, x and the weight, and the call that takes them."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from math import prod
from typing import NamedTuple

import torch
from torch import Tensor

from blockscale.core import reference
from blockscale.core.block import WHOLE
from blockscale.core.operand import Operand, Quantizer
from blockscale.core.parse import parse
from blockscale.core.reference import QParams
from blockscale.core.scale import PowerOfTwo
from blockscale.kernels.cuda.matmul.reading import Reading, is_bfloat16
from blockscale.kernels.cuda.quantize import choose_quantize, dequantize, fake_quantize, quantize
from blockscale.kernels.cuda.relaunch import cdiv, power_of_2

# What a linear layer multiplies the weight with: x itself, or what its input format leaves of it.
#
# Where values are small codes times one scale a row, or times powers of two, bfloat16 holds them
# exactly and the tensor cores take them as they are.


@dataclass(frozen=True)
class Values:
    """x [rows, k] in a dtype that holds it exactly, and a factor for each row, or None."""

    x: Tensor
    row: Tensor | None = None

    def alone(self, i: int) -> "Values":
        """One row, in memory of its own."""
        row = None if self.row is None else self.row[i : i + 1].clone()
        return Values(self.x[i : i + 1].clone(), row)


@dataclass(frozen=True)
class Codes:
    """Packed codes [rows, bytes] of an element, and a float32 factor for each row [rows]."""

    packed: Tensor
    element: str
    row: Tensor
    size: int

    def alone(self, i: int) -> "Codes":
        """One row, in memory of its own."""
        packed, row = self.packed[i : i + 1].clone(), self.row[i : i + 1].clone()
        return Codes(packed, self.element, row, self.size)

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
    values = fake_quantize(wide, by).reshape(-1, k)
    return Values(values.to(torch.bfloat16) if how == "powers" else values)


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


# A quantized weight as the ways to multiply take it: as words, with factors of its outputs.


class Weight(NamedTuple):
    """A quantized weight [n, k] as the op gets it.

    codes: packed, [n, bytes], or [n, k] where a code fills whole bytes
    scale, zero_point: one for each block; outer: of scales that have scales of their own
    """

    codes: Tensor
    scale: Tensor
    zero_point: Tensor | None
    outer: Tensor | None


def exact_products() -> str | None:
    """What the environment says of products whose loss a bfloat16 result hides (docs/numerics.md,
    7): "exact" for none of them, or nothing."""
    return os.environ.get("BLOCKSCALE_WEIGHT_PRODUCTS")


def as_words(codes: Tensor) -> Tensor | None:
    """Packed codes [n, bytes] as int32 [n, words], or None where they do not lie so."""
    stride = codes.stride(0)
    if codes.stride(-1) != 1 or stride % 4 or codes.shape[-1] % 4 or codes.data_ptr() % 4:
        return None
    return codes.view(torch.int32)


def scale_stride(weight: Weight) -> int:
    """How far apart the scales of one row of blocks and the next are; 0 where there is one row."""
    return weight.scale.stride(0) if weight.scale.shape[0] > 1 else 0


class OutputFactors(NamedTuple):
    """What the sums of each output are multiplied by: float32 [n] or [1], or None for nothing.

    stride: from one output's factor to the next one's, 0 where all have the same
    """

    values: Tensor | None
    stride: int


def output_factors(weight: Weight, fmt: str, r: Reading) -> OutputFactors:
    """What of the scales is left for the sums when `r` has folded the rest into the codes."""
    if r.width and r.fold != "codes":
        return OutputFactors(None, 0)
    if r.width:
        assert weight.outer is not None
        outer = weight.outer.reshape(-1)
        if outer.numel() > 1 and r.height > 1:
            outer = outer.repeat_interleave(r.height, 0)
        return OutputFactors(outer, int(outer.numel() > 1))
    steps = reference.step_of(QParams(weight.scale, weight.outer, weight.zero_point), parse(fmt))
    if r.height > 1:
        steps = steps.repeat_interleave(r.height, 0)
    return OutputFactors(steps.reshape(-1), int(steps.numel() > 1))


class StackFactors(NamedTuple):
    """What sums are multiplied by: float32 [E or 1, count] or None; `height` outputs share one."""

    values: Tensor | None
    height: int

    @property
    def apart(self) -> int:
        """From the values of one matrix to those of the next; 0 where all have the same."""
        return 0 if self.values is None or len(self.values) == 1 else self.values.shape[1]


def factors_of(whole: Operand, r: Reading, fmt: str) -> StackFactors | None:
    """What of the scales of a stack is left for the sums, as `output_factors` says of one matrix.
    None where outputs do not share factors evenly."""
    n, scale = whole.codes.shape[1], whole.scale
    if r.width and r.fold != "codes":
        return StackFactors(None, 1)
    if r.width:
        assert whole.outer is not None
        values = whole.outer.reshape(whole.outer.shape[0], -1)
    else:
        steps = reference.step_of(QParams(scale, whole.outer, whole.zero_point), parse(fmt))
        values = steps.reshape(scale.shape[0], -1)
    count = values.shape[1]
    if r.height > 1 and count == cdiv(n, r.height):
        return StackFactors(values, r.height)
    return StackFactors(values, n // count) if n % count == 0 else None


# What is asked of a product, and how a table writes the settings of a way to compute it.

COLUMNS = 7  # numbers of a table's entry; the last two may be left out, and are then 1


class ProductCall(NamedTuple):
    """What the choice among the ways depends on.

    what: "weight" where codes of the weight meet values of x, "int8" or "fp8" where they meet codes
    fmt: the weight's spelling
    rows: of x, counting each of the bfloat16 numbers that its elements are split into
    n, k: outputs and inputs
    fused: whether this GPU can run the kernels in hopper/ on this weight
    """

    what: str
    fmt: str
    rows: int
    n: int
    k: int
    fused: bool = False


# What kernels are written for: rows and outputs of a tile, words or codes of a step, warps, stages
# or programs, parts of a sum, steps at a time. 0 where a way has no such number.
_NUMBERS = (
    (0, 8, 16, 32, 64, 128, 192, 256), (0, 16, 32, 64, 128, 256, 2048, 4096),
    (0, 8, 16, 32, 48, 64, 128, 256), (0, 1, 2, 4, 8, 16), range(9), range(1, 17),
    range(1, 9),
)  # fmt: skip


def columns(numbers: Sequence[int]) -> tuple[int, ...]:
    """The seven numbers of a table's entry. Raises ValueError if there are none, or too many."""
    if not COLUMNS - 2 <= len(numbers) <= COLUMNS:
        raise ValueError(
            f"a table of launch choices has an entry with the numbers {list(numbers)}, where "
            f"{COLUMNS - 2} to {COLUMNS} were expected: delete the table that "
            "BLOCKSCALE_TUNE_CACHE names"
        )
    for number, choices in zip(numbers, _NUMBERS, strict=False):
        if type(number) is not int or number not in choices:
            raise ValueError(
                f"a table of launch choices has an entry with the number {number!r}, where one of "
                f"{', '.join(map(str, choices))} was expected: delete the table that "
                "BLOCKSCALE_TUNE_CACHE names"
            )
    return (*numbers, *(1,) * (COLUMNS - len(numbers)))


def tile_rows(rows: int, least: int) -> int:
    """The power of two that holds so many rows of x, and is `least` at least."""
    return max(least, power_of_2(rows))


def worth_measuring(rows: int, call: ProductCall) -> bool:
    """Whether a tile of so many rows is neither much larger nor much smaller than the call's."""
    if rows == 8:
        return call.rows <= 8
    top = tile_rows(call.rows, 16)
    return top // 2 <= rows <= top or (rows >= 128 and top > 128)
