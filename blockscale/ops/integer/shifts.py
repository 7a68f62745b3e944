# SPDX-License-Identifier: BSD-3-Clause
"""Rounding shifts, and how every integer op ends: from sums to codes of a format.

A code c under the step 2^e means (c - zero) * 2^e. Sums of products of codes are integers under the
sum of the exponents, so bringing them to another exponent is a shift with rounding (Jacob et al.
2018, sec. 2.2 to 2.4, with a multiplier of 1).
"""

from typing import Any

import torch
from torch import Tensor

from blockscale.core.arithmetic.sums import FARTHEST_LEFT
from blockscale.core.elements.integer import Integer
from blockscale.core.format import Format
from blockscale.core.parse import parse
from blockscale.core.rounding import DETERMINISTIC
from blockscale.ops.integer.define import integer_op

_FARTHEST = 62  # shifting an int64 further changes nothing: it is far below half a step
_BEYOND = 2**17  # more than any code of 16 bits: what is shifted left saturates from here on

# those of formats but for stochastic, and what most hardware does: add half a step, then shift
SHIFT_ROUNDINGS = (*DETERMINISTIC, "half_up")


def _rounds_up(floor: Tensor, rest: Tensor, half: Tensor, rounding: str) -> Tensor:
    """Whether floor + rest, with 0 <= rest < 2 * half, goes to floor + 1; all int64."""
    if rounding in ("nearest_even", "nearest_away"):
        tie = (floor & 1 == 1) if rounding == "nearest_even" else (floor >= 0)
        return (rest > half) | ((rest == half) & tie)
    if rounding == "half_up":
        return rest >= half
    if rounding == "toward_zero":
        return (rest > 0) & (floor < 0)
    return (rest > 0) & (rounding == "up")


def shift_right(x: Tensor, shift: Tensor, rounding: str = "nearest_even") -> Tensor:
    """x [...] integers times 2^-shift, rounded to an integer -> [...] int64.

    shift: int32, broadcasts with x; of any size and sign. A negative one shifts left, by at most
        31 bits: the result is then at least 2^31 in magnitude, or 0 where x is 0. |x| < 2^31 there.
    rounding: one of SHIFT_ROUNDINGS.

    Raises ValueError for another rounding.
    """
    if rounding not in SHIFT_ROUNDINGS:
        there = ", ".join(SHIFT_ROUNDINGS)
        raise ValueError(f"unknown rounding {rounding!r} of shifts; choose from {there}")
    wide, distance = x.to(torch.int64), shift.to(torch.int64)
    right, left = distance.clamp(0, _FARTHEST), (-distance).clamp(0, FARTHEST_LEFT)
    floor = wide >> right
    rest = wide - (floor << right)
    half = (torch.ones_like(right) << right) >> 1
    exact = right == 0  # nothing is shifted out, and half a step would be 0
    return (floor + (_rounds_up(floor, rest, half, rounding) & ~exact)) << left


def requantize_shift(
    acc: Tensor,
    shift: Tensor,
    fmt: Format,
    zero_point: int = 0,
    rounding: str | None = None,
) -> Tensor:
    """Sums [...] int32 -> codes [...] of `fmt`: clamp(round(acc * 2^-shift) + zero_point).

    shift: int32, broadcasts with acc: the output's exponent minus the sums', for each channel or
        for all. Positive, zero or negative, of any size; what leaves the range saturates.
    fmt: says the codes' range and dtype, and the rounding unless `rounding` names another of
        `shift_right`'s. Under it the codes are those that `quantize` gives for acc * step, bit for
        bit (docs/power_of_two.md).

    Raises ValueError for a format whose element is no integer, and for other roundings.
    """
    if not isinstance(fmt.element, Integer):
        raise ValueError(
            f"{fmt}: requantizing by a shift gives integers such as int8, not {fmt.element.name}"
        )
    low, high = fmt.element.limits(fmt.wide)
    steps = shift_right(acc, shift, rounding or fmt.rounding)
    return (steps + zero_point).clamp(int(low), int(high)).to(fmt.element.code_dtype)


def divided(x: Tensor, by: Tensor, rounding: str) -> Tensor:
    """x [...] int64 divided by positive integers that broadcast, rounded -> [...] int64."""
    floor = torch.div(x, by, rounding_mode="floor")
    rest = 2 * (x - floor * by)
    return floor + _rounds_up(floor, rest, by, rounding)


def ended(acc: Tensor, shift: Tensor, zero: int, low: int, high: int, fmt: str) -> Tensor:
    """Sums [...] int32 or int64 -> codes [...]: clamp(round(acc * 2^-shift) + zero, low, high).

    fmt: whose codes they are: it says the rounding and the dtype, and its range holds low and
        high. Empty: the result is sums still, acc * 2^-shift in acc's dtype, without a zero point;
        no shift is positive; they are clamped unless low and high are equal.
    """
    if not fmt:
        sums = acc << (-shift).clamp(0, FARTHEST_LEFT).to(acc.dtype)
        return sums if low == high else sums.clamp(low, high)
    form = parse(fmt)
    small = acc.clamp(-_BEYOND, _BEYOND) if acc.dtype == torch.int64 else acc
    wide = torch.where(shift < 0, small, acc)
    steps = shift_right(wide, shift, form.rounding)
    return (steps + zero).clamp(low, high).to(form.element.code_dtype)


def centered(codes: Tensor, zero: int, dtype: torch.dtype = torch.int32) -> Tensor:
    """Codes [...] -> how many steps each means [...]."""
    return codes.to(dtype) - zero


def ended_like(acc: Tensor, shift: Tensor, fmt: str, dtype: torch.dtype | None = None) -> Tensor:
    """What `ended` gives for sums like these, without values: for the shape rules of ops.

    dtype: of the sums, if not acc's
    """
    result = parse(fmt).element.code_dtype if fmt else dtype or acc.dtype
    size = acc.shape
    if shift.ndim > acc.ndim or any(n != 1 for n in shift.shape):
        size = torch.broadcast_shapes(size, shift.shape)  # type: ignore[no-untyped-call]
    return acc.new_empty(size, dtype=result)


def _wide(x: Tensor) -> torch.dtype:
    return torch.int64 if x.dtype == torch.int64 else torch.int32


def _rescale_shape(x: Tensor, *others: Any) -> Tensor:
    return ended_like(x, others[-5], others[-1], _wide(x))


@integer_op(shape=_rescale_shape)
def rescale(
    x: Tensor, x_zero: int, shift: Tensor, zero: int, low: int, high: int, fmt: str
) -> Tensor:
    """Codes or sums x [...] -> codes [...] under another exponent: `ended` of x - x_zero.

    ReLU and its bounded kin are a narrower range of codes: low, high.
    """
    return ended(centered(x, x_zero, _wide(x)), shift, zero, low, high, fmt)
