# SPDX-License-Identifier: BSD-3-Clause
"""Shifts and quotients with rounding by ONNX's integer operators, as `ops/integer/shifts.py` has
them.

BitShift takes unsigned numbers. A multiple of every power of two that is shifted by is added
first, which makes all sums positive, and its share is taken away afterwards.
"""

import numpy as np
import torch
from torch import Tensor

from blockscale.core.arithmetic.sums import FARTHEST_LEFT
from blockscale.export.to_onnx.scope import Scope

_FARTHEST = 62
_ABOVE = 1 << _FARTHEST  # more than any sum of int64 that integer graphs have


def int64(scope: Scope, number: int) -> str:
    """A constant."""
    return scope.constant(np.array(number, np.int64))


def larger(scope: Scope, a: str, b: str) -> str:
    """The larger of two numbers int64. onnxruntime 1.31.1 has Max, Min and Clip of int64 that look
    at the lower 32 bits on processors with AVX2: they give 0 for Clip(2^31, 0, 255)."""
    return scope.op("Where", scope.op("Greater", a, b), a, b)


def clipped(scope: Scope, x: str, low: int, high: int) -> str:
    """x int64 from low to high; comparisons in the place of Clip, as `larger` has them."""
    least, most = int64(scope, low), int64(scope, high)
    x = larger(scope, x, least)
    return scope.op("Where", scope.op("Less", x, most), x, most)


def shifted(scope: Scope, x: str, shift: Tensor, rounding: str) -> str:
    """x int64 · 2^-shift, rounded to an integer: `shifts.shift_right`. |x| < 2^62, and below 2^31
    where it is shifted to the left."""
    distance = shift.to(torch.int64)
    right, left = distance.clamp(0, _FARTHEST), (-distance).clamp(0, FARTHEST_LEFT)
    if bool((right > 0).any()):
        x = _shifted_right(scope, x, right, rounding)
    return shifted_left(scope, x, left)


def shifted_left(scope: Scope, x: str, left: Tensor) -> str:
    """x int64 · 2^left, for shifts that are not negative."""
    if not bool((left > 0).any()):
        return x
    bits = scope.cast(x, "UINT64")
    by = scope.constant(left.numpy().astype(np.uint64))
    return scope.cast(scope.op("BitShift", bits, by, direction="LEFT"), "INT64")


def divided(scope: Scope, x: str, by: Tensor, rounding: str) -> str:
    """x int64 over positive integers, rounded: `shifts.divided`."""
    divisor = scope.constant(by.numpy())
    towards_zero = scope.op("Div", x, divisor)
    rest = scope.op("Sub", x, scope.op("Mul", towards_zero, divisor))
    below = scope.op("Less", rest, int64(scope, 0))
    floor = scope.op("Sub", towards_zero, scope.cast(below, "INT64"))
    rest = scope.op("Sub", x, scope.op("Mul", floor, divisor))
    twice = scope.op("Add", rest, rest)
    up = _rounds_up(scope, floor, twice, by, rounding)
    return scope.op("Add", floor, scope.cast(up, "INT64")) if up else floor


def _shifted_right(scope: Scope, x: str, right: Tensor, rounding: str) -> str:
    lifted = scope.op("Add", x, int64(scope, _ABOVE))  # BitShift takes unsigned numbers
    by = scope.constant(right.numpy().astype(np.uint64))
    one = torch.ones_like(right)
    rest = scope.op("BitwiseAnd", lifted, scope.constant(((one << right) - 1).numpy()))
    whole = scope.cast(scope.op("Sub", lifted, rest), "UINT64")  # only zeros are shifted out
    floor = scope.op("BitShift", whole, by, direction="RIGHT")
    floor = scope.op("Sub", scope.cast(floor, "INT64"), scope.constant((_ABOVE >> right).numpy()))
    up = _rounds_up(scope, floor, rest, (one << right) >> 1, rounding)
    if not up:
        return floor
    if bool((right == 0).any()):  # nothing is shifted out there, and half a step would be 0
        up = scope.op("And", up, scope.constant((right > 0).numpy()))
    return scope.op("Add", floor, scope.cast(up, "INT64"))


def _rounds_up(scope: Scope, floor: str, rest: str, half: Tensor, rounding: str) -> str:
    """Whether floor + rest / (2 · half) goes to floor + 1; empty where it never does."""
    middle, zero = scope.constant(half.numpy()), int64(scope, 0)
    if rounding == "down":
        return ""
    if rounding == "up":
        return scope.op("Greater", rest, zero)
    if rounding == "toward_zero":
        negative = scope.op("Less", floor, zero)
        return scope.op("And", negative, scope.op("Greater", rest, zero))
    if rounding == "half_up":
        return scope.op("GreaterOrEqual", rest, middle)
    if rounding == "nearest_even":
        last = scope.op("BitwiseAnd", floor, int64(scope, 1))
        tie = scope.op("Equal", last, int64(scope, 1))
    else:
        tie = scope.op("GreaterOrEqual", floor, zero)
    at_tie = scope.op("And", scope.op("Equal", rest, middle), tie)
    return scope.op("Or", scope.op("Greater", rest, middle), at_tie)
