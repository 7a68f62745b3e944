# SPDX-License-Identifier: BSD-3-Clause
"""Products of integers in int32 by MatMulInteger and ConvInteger, which take 8 bits.

A number of 16 bits is 256 · high + low, and products are sums of products:

    x · w  =  65536 xh·wh  +  256 (xh·wl + xl·wh)  +  xl·wl        exact, as int32 wraps around

Of codes uint8 both sides are uint8, signed ones with a zero point of 128: onnxruntime multiplies
uint8 by int8 with `vpmaddubsw` on processors with AVX2 and without VNNI, whose sums of two products
saturate at 16 bits; uint8 by uint8 and int8 by int8 it widens first. (ConvInteger of 1.31.1 gives
other sums for int8 by uint8, so codes int8 keep weights int8.)"""

from collections.abc import Callable, Sequence
from itertools import product
from typing import Any

import numpy as np
import torch
from torch import Tensor

from blockscale.core.arithmetic.sums import FARTHEST_LEFT
from blockscale.export.to_onnx.scope import Scope, put_tensor

_BYTES = {torch.int8: np.int8, torch.uint8: np.uint8}
_Part = tuple[int, str, str]  # what to multiply by, the numbers, their zero point


def in_bytes(kind: torch.dtype, zero_point: int, weight: Tensor) -> bool:
    """Whether products of codes of `kind` and a weight can be written as products of 8 bits."""
    return weight.dtype in (torch.int8, torch.int16) and (kind in _BYTES or not zero_point)


def multiply(scope: Scope, x: str, kind: torch.dtype, zero_point: int, weight: Tensor) -> str:
    """Codes x [..., k] of `kind` times a weight [k, n] int8 or int16 -> [..., n] int32."""

    def one(*operands: str) -> str:
        return scope.op("MatMulInteger", *operands)

    return _summed(
        scope, _parts(scope, x, kind, zero_point), _split(weight, kind == torch.int8), one
    )


def convolve(
    scope: Scope, x: str, kind: torch.dtype, zero_point: int, weight: Tensor, **attributes: Any
) -> str:
    """Codes x [batch, channels, *size] through a convolution -> sums int32, without bias.

    weight: [n, channels / groups, *kernel]; attributes: those of ONNX's ConvInteger
    """

    def one(*operands: str) -> str:
        return scope.op("ConvInteger", *operands, **attributes)

    return _summed(
        scope, _parts(scope, x, kind, zero_point), _split(weight, kind == torch.int8), one
    )


def _parts(scope: Scope, x: str, kind: torch.dtype, zero_point: int) -> list[_Part]:
    """Codes as parts of 8 bits."""
    if kind in _BYTES:
        return [(1, x, scope.constant(np.array(zero_point, _BYTES[kind])))]
    if zero_point:
        raise ValueError(
            f"codes of 16 bits with the zero point {zero_point} have no integer product in "
            "ONNX: use a format without asym, or one of 8 bits"
        )
    none = scope.constant(np.array(0, np.uint8))
    wide = scope.cast(x, "INT32")
    low = scope.op("BitwiseAnd", wide, scope.constant(np.array(255, np.int32)))
    high = scope.op("Div", scope.op("Sub", wide, low), scope.constant(np.array(256, np.int32)))
    if kind == torch.int16:
        high = scope.op("Add", high, scope.constant(np.array(128, np.int32)))
    zero = scope.constant(np.array(128 if kind == torch.int16 else 0, np.uint8))
    return [(1, scope.cast(low, "UINT8"), none), (256, scope.cast(high, "UINT8"), zero)]


def _split(weight: Tensor, signed: bool) -> list[tuple[int, Tensor, int]]:
    """A weight as parts of 8 bits, each with what it counts and its zero point."""
    wide = weight.to(torch.int32)
    low = wide & 255
    parts = [(1, wide)] if weight.dtype == torch.int8 else [(256, (wide - low) // 256)]
    if signed:
        split = [(count, part.to(torch.int8), 0) for count, part in parts]
    else:
        split = [(count, (part + 128).to(torch.uint8), 128) for count, part in parts]
    return split if weight.dtype == torch.int8 else [(1, low.to(torch.uint8), 0), *split]


def _summed(
    scope: Scope,
    parts: Sequence[_Part],
    weights: Sequence[tuple[int, Tensor, int]],
    one: Callable[..., str],
) -> str:
    """The sum of the products of all parts."""
    total = ""
    for (count, x, zero), (times, part, shift) in product(parts, weights):
        stored = put_tensor(scope.file, f"{scope.within}.weight", part.contiguous())
        y = one(x, stored, zero, scope.constant(np.array(shift, _BYTES[part.dtype])))
        if count * times > 1:
            y = scope.op("Mul", y, scope.constant(np.array(count * times, np.int32)))
        total = scope.op("Add", total, y) if total else y
    return total


# Shifts and quotients with rounding by ONNX's integer operators, as `ops/integer/shifts.py` has
# them.
#
# BitShift takes unsigned numbers. A multiple of every power of two that is shifted by is added
# first, which makes all sums positive, and its share is taken away afterwards.


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
    right, to_left = distance.clamp(0, _FARTHEST), (-distance).clamp(0, FARTHEST_LEFT)
    if bool((right > 0).any()):
        x = _shifted_right(scope, x, right, rounding)
    return shifted_left(scope, x, to_left)


def shifted_left(scope: Scope, x: str, shift: Tensor) -> str:
    """x int64 · 2^shift, for shifts that are not negative."""
    if not bool((shift > 0).any()):
        return x
    bits = scope.cast(x, "UINT64")
    by = scope.constant(shift.numpy().astype(np.uint64))
    return scope.cast(scope.op("BitShift", bits, by, direction="LEFT"), "INT64")


def divide(scope: Scope, x: str, by: Tensor, rounding: str) -> str:
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
    above = scope.op("Add", x, int64(scope, _ABOVE))  # BitShift takes unsigned numbers
    by = scope.constant(right.numpy().astype(np.uint64))
    one = torch.ones_like(right)
    rest = scope.op("BitwiseAnd", above, scope.constant(((one << right) - 1).numpy()))
    whole = scope.cast(scope.op("Sub", above, rest), "UINT64")  # only zeros are shifted out
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
