# SPDX-License-Identifier: BSD-3-Clause
"""x @ weight.T: codes times codes where tensor cores take them, else weights decoded on the way."""

from dataclasses import replace
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor

from blockscale.core.arithmetic.precision import float32_inside
from blockscale.core.operand import UNQUANTIZED, Operand, Quantizer
from blockscale.core.parse import parse
from blockscale.core.scales import TwoLevel
from blockscale.kernels.cuda import interpreting
from blockscale.kernels.cuda.dequantize import dequantize
from blockscale.kernels.cuda.matmul import choice as ways
from blockscale.kernels.cuda.matmul.call import Call
from blockscale.kernels.cuda.matmul.choice import WAYS, Choice
from blockscale.kernels.cuda.matmul.codes import codes, float8_sums, pair
from blockscale.kernels.cuda.matmul.composed import halves, offsets, rounded
from blockscale.kernels.cuda.matmul.finish import NO_ENDS, Ends, add_up
from blockscale.kernels.cuda.matmul.hopper import available
from blockscale.kernels.cuda.matmul.input import Codes, Values, read
from blockscale.kernels.cuda.matmul.order import PARTS
from blockscale.kernels.cuda.matmul.reading import (
    Reading,
    reading,
    reading_as_one,
    through_memory,
)
from blockscale.kernels.cuda.matmul.weight import Weight, as_words, exact_products
from blockscale.kernels.cuda.primitives.form import floats, form
from blockscale.kernels.cuda.primitives.launch import guard
from blockscale.kernels.cuda.replay.replay import replayed
from blockscale.kernels.cuda.spec import known, spec
from blockscale.kernels.registry import kernel

_MANY, _MORE = 64, 1024  # rows from which values are taken as two bfloat16: of what nothing else
# takes, and of tables in several parts


def _how_exact(
    x: Tensor, weight: Operand, bias: Tensor | None = None, input: Quantizer = UNQUANTIZED
) -> str | None:
    """What `pair` and `_how_read` decide by, beside a call's arguments."""
    del x, bias
    hides = rounded.least_rows(weight.fmt, weight.size) is not None  # tables are among these
    said = ((hides and exact_products()) or "", (input.fmt and float8_sums()) or "")
    return " ".join(said) if any(said) else None


@kernel("linear", backend="cuda", supports=known)
@replayed(also=_how_exact)
def linear(
    x: Tensor, weight: Operand, bias: Tensor | None = None, input: Quantizer = UNQUANTIZED
) -> Tensor:
    """As ops.linear.linear."""
    x, fmt = floats(x), weight.fmt
    n, k = weight.codes.shape[0], x.shape[-1]
    if k != weight.size:
        raise ValueError(f"expected x of shape [..., {weight.size}], found {tuple(x.shape)}")
    w = _checked(weight, k)
    bias = None if bias is None else bias.expand(n).contiguous()
    shape = (*x.shape[:-1], n)
    if not x.numel() or not n:
        y = x.new_zeros(shape)
        return y if bias is None else y.copy_(bias)
    with guard(x):
        left = read(x, input)
        if isinstance(left, Values) and rounded.takes(left.x, w, x.dtype):
            y = rounded.rounded(left.x, w, Ends(left.row, bias), x.dtype)
            return y.reshape(shape)
        if w.more or w.format.zero:  # parts that no way to multiply knows
            left = left.values() if isinstance(left, Codes) else left
            return _with_offsets(left, w, bias, x.dtype).reshape(shape)
        return multiplied(left, Weight(*w[:4]), fmt, bias, x.dtype).reshape(shape)


def _checked(weight: Operand, k: int) -> Operand:
    """The weight in order. Raises ValueError if its parts do not fit the format."""
    if weight.codes.ndim != 2:
        raise ValueError(
            f"{weight.fmt}: a linear weight's codes must be [n, k], found "
            f"{tuple(weight.codes.shape)}"
        )
    stored = form(weight.fmt)
    shape = (weight.codes.shape[0], k)
    codes = stored.checked_codes(weight.codes, shape)
    scale, zero_point, outer = weight.scale, weight.zero_point, weight.outer
    stored.given_parts(codes, shape, scale, zero_point, outer, weight.more)
    return weight._replace(
        codes=codes,
        scale=scale.contiguous(),
        zero_point=None if zero_point is None else zero_point.contiguous(),
        outer=None if outer is None else outer.contiguous(),
    )


def _with_offsets(x: Values, w: Operand, bias: Tensor | None, dtype: torch.dtype) -> Tensor:
    """x with a weight whose blocks have offsets, or zero points that are no integers: [rows, n]."""
    other = offsets.with_zero_points(w.fmt, w.size)
    if not other:
        return _in_float32(x, w, bias, dtype)

    def main(x: Values, weight: Weight, fmt: str, dtype: torch.dtype) -> Tensor:
        return weighted(x, weight, fmt, None, dtype)

    return offsets.product(x, w, other, bias, dtype, main)


def multiplied(
    x: Values | Codes,
    w: Weight,
    fmt: str,
    bias: Tensor | None,
    dtype: torch.dtype,
    choice: Choice | None = None,
) -> Tensor:
    """What was read of x with the weight, as `choice` says, else as is best: [rows, n] of dtype."""
    if isinstance(x, Codes):
        what = pair(fmt, x.element, x.size, dtype)
        if what and (choice is None or choice.way in ("codes", "library")):
            if choice is None:
                call = Call(what, fmt, x.row.numel(), w.codes.shape[0], x.size)
                choice = ways.choose(call, None, device_name(w.codes))
            return codes(x, w, fmt, Ends(x.row, bias), choice.settings, dtype)  # type: ignore[arg-type]
        x = x.values()
    return weighted(x, w, fmt, bias, dtype, choice)


def weighted(
    x: Values,
    w: Weight,
    fmt: str,
    bias: Tensor | None,
    dtype: torch.dtype,
    choice: Choice | None = None,
) -> Tensor:
    """Values of x with a weight that is decoded, as `choice` says, else as is best: [rows, n]."""
    (rows, k), n = x.x.shape, w.codes.shape[0]
    r = _how_read(x.x, fmt, dtype)
    if r is None or (not r.width and isinstance(parse(fmt).scale, TwoLevel)):
        return _in_float32(x, Operand(*w, fmt, k), bias, dtype)
    if r.further and rows >= _MORE and choice is None and halves.takes(x.x, dtype):
        return halves.halves(x.x, Operand(*w, fmt, k), Ends(x.row, bias), dtype)
    if r.planes and as_words(w.codes) is None:
        r = through_memory(r)
    if choice is None:
        hopper = available.can_run(w.codes)
        call = Call("weight", fmt, rows * PARTS[x.x.dtype], n, k, hopper)
        choice = ways.choose(call, r, device_name(w.codes))
    if r.multiplier != 1.0:
        x = replace(x, row=_times_row(x, 1 / r.multiplier))
    if r.further:
        return _sum_of_parts(x, w, fmt, r, bias, dtype, choice)
    return WAYS[choice.way].run(x.x, w, fmt, r, Ends(x.row, bias), choice.settings, dtype)


@cache
def _several(fmt: str, k: int) -> bool:
    """Whether a table's values are read in several parts."""
    r = reading(fmt, k)
    return r is not None and bool(r.further)


def _how_read(x: Tensor, fmt: str, dtype: torch.dtype) -> Reading | None:
    """`reading` of a weight's rows; where a bfloat16 result of bfloat16 x hides what that loses, a
    table's values as one bfloat16 each."""
    k = x.shape[1]
    if x.dtype is dtype is torch.bfloat16 and _several(fmt, k) and exact_products() != "exact":
        return reading_as_one(fmt, k) or reading(fmt, k)
    return reading(fmt, k)


def _sum_of_parts(
    x: Values,
    w: Weight,
    fmt: str,
    r: Reading,
    bias: Tensor | None,
    dtype: torch.dtype,
    choice: Choice,
) -> Tensor:
    """As `weighted`, of tables that are read in several parts."""
    readings, run = (r, *r.further), WAYS[choice.way].run
    rows, n = x.x.shape[0], w.codes.shape[0]
    sums = x.x.new_empty((len(readings), rows, n), dtype=torch.float32)
    for i, one in enumerate(readings):  # an index, not `zip`, of which there are no recordings
        sums[i].copy_(run(x.x, w, fmt, one, NO_ENDS, choice.settings, torch.float32))
    return add_up(sums, len(readings), Ends(x.row, bias), sums.new_empty((rows, n), dtype=dtype))


def _times_row(x: Values, by: float) -> Tensor:
    """The factors of the rows of x times a number."""
    if x.row is None:
        return torch.full((x.x.shape[0],), by, dtype=torch.float32, device=x.x.device)
    return x.row * by


def _in_float32(x: Values, w: Operand, bias: Tensor | None, dtype: torch.dtype) -> Tensor:
    """Elements of more than 8 bits, scales of a few elements: everything in float32.

    Tables, and blocks with offsets or with zero points that are no integers, for many rows: as two
    bfloat16 each.
    """
    own = w.more or w.format.zero or spec(w.fmt).element.family == "codebook"
    if own and x.x.shape[0] >= _MANY and halves.takes(x.x, dtype):
        return halves.halves(x.x, w, Ends(x.row, bias), dtype)
    weight = dequantize(w, torch.float32)
    values = x.x.to(torch.float32)
    if x.row is not None:
        values = values * x.row[:, None]
    with float32_inside(values):
        y = F.linear(values, weight, None if bias is None else bias.to(torch.float32))
    return y.to(dtype)


def device_name(x: Tensor) -> str:
    """The name of the GPU that has x, which tables of launch choices have."""
    return "interpreter" if interpreting() else _name(x.device.index or 0)


@cache
def _name(index: int) -> str:
    return torch.cuda.get_device_name(index)
