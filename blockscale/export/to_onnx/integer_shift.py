# SPDX-License-Identifier: BSD-3-Clause
"""Shifts with rounding by ONNX's integer operators, as `graph/integer/arithmetic.py` has them.

BitShift takes unsigned numbers. A multiple of every power of two that is shifted by is added
first, which makes all sums positive, and its share is taken away afterwards.
"""

import numpy as np
import torch
from torch import Tensor

from blockscale.export.to_onnx.scope import Scope

_ABOVE = 1 << 42  # more than any sum of int32, and a multiple of 2^40
_FARTHEST = 40


def _int(scope: Scope, number: int) -> str:
    return scope.constant(np.array(number, np.int64))


def shifted(scope: Scope, x: str, shift: Tensor, rounding: str) -> str:
    """x int64 · 2^-shift, rounded to an integer: `arithmetic.shift_right`."""
    right, left = shift.clamp(0, _FARTHEST), (-shift).clamp(0, 31)
    if bool((right > 0).any()):
        x = _shifted_right(scope, x, right, rounding)
    if bool((left > 0).any()):
        bits = scope.cast(x, "UINT64")
        by = scope.constant(left.numpy().astype(np.uint64))
        x = scope.cast(scope.op("BitShift", bits, by, direction="LEFT"), "INT64")
    return x


def _shifted_right(scope: Scope, x: str, right: Tensor, rounding: str) -> str:
    lifted = scope.op("Add", x, _int(scope, _ABOVE))  # BitShift takes unsigned numbers
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
    middle, zero = scope.constant(half.numpy()), _int(scope, 0)
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
        last = scope.op("BitwiseAnd", floor, _int(scope, 1))
        tie = scope.op("Equal", last, _int(scope, 1))
    else:
        tie = scope.op("GreaterOrEqual", floor, zero)
    at_tie = scope.op("And", scope.op("Equal", rest, middle), tie)
    return scope.op("Or", scope.op("Greater", rest, middle), at_tie)
