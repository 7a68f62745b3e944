# SPDX-License-Identifier: BSD-3-Clause
"""Which value of an element a number of steps becomes, by ONNX's operators (numerics.md, 2 and 4).

The result is the value and not its code: between quantizing and dequantizing in one function
nobody sees codes, and a value says the same. Elements with few values per sign are looked up by
bisection; integers and small floats are rounded.
"""

import math

import numpy as np

from blockscale.core.element import Element
from blockscale.core.elements.binary import Binary
from blockscale.core.elements.integer import Integer
from blockscale.core.elements.minifloat import Minifloat, UnsignedMinifloat
from blockscale.core.format import Format
from blockscale.export.to_onnx.scope import Scope
from blockscale.export.to_onnx.stored import native

_FEW_BINADES = 4  # so many are told apart by comparisons, more by the type e8m0


def refused(fmt: Format) -> str | None:
    """Why nothing in a file can quantize to a format, or None."""
    if fmt.rounding == "stochastic":
        return "no operator has the random numbers of stochastic rounding: use fmt.deterministic"
    if fmt.element.learned:
        return "its codebook would have to be learned again from every tensor"
    if not isinstance(fmt.element, Integer | Minifloat | UnsignedMinifloat | Binary) and (
        (numbers := fmt.element.numbers(fmt.wide)) is None or numbers.family != "codebook"
    ):
        return f"the element {fmt.element.name} does not describe its values to kernels and files"
    return None


def encoded(scope: Scope, y: str, fmt: Format, zero: str = "") -> str:
    """y [...] in steps -> value minus zero point, what the step is multiplied by.

    zero: the zero point as floats that broadcast with y, where the format has one.
    """
    element = fmt.element
    if isinstance(element, Integer):
        return _integer(scope, y, fmt, zero)
    if isinstance(element, Binary):
        negative = scope.op("Less", y, scope.floats(0.0))
        return scope.op("Where", negative, scope.floats(-1.0), scope.floats(1.0))
    if isinstance(element, Minifloat):
        return _minifloat(scope, y, element, fmt.rounding)
    if isinstance(element, UnsignedMinifloat):
        return unsigned(scope, y, element, fmt.rounding)
    return _looked_up(scope, y, element, fmt.wide)


def _integer(scope: Scope, y: str, fmt: Format, zero: str) -> str:
    low, high = (scope.floats(limit) for limit in fmt.element.limits(fmt.wide))
    y = without_nan(scope, y)
    if zero and fmt.zero is not None:  # a zero point that is no integer comes before rounding
        codes = rounded(scope, scope.op("Add", y, zero), fmt.rounding)
    else:
        codes = rounded(scope, y, fmt.rounding)
        codes = scope.op("Add", codes, zero) if zero else codes
    codes = scope.op("Clip", codes, low, high)
    return scope.op("Sub", codes, zero) if zero else codes


def without_nan(scope: Scope, y: str) -> str:
    """y with 0 in the place of NaN."""
    return scope.op("Where", scope.op("IsNaN", y), scope.floats(0.0), y)


def rounded(scope: Scope, t: str, how: str) -> str:
    """t [...] rounded to integers by a rounding mode of section 2 but stochastic."""
    if how == "nearest_even":
        return scope.op("Round", t)
    if how in ("down", "up"):
        return scope.op("Floor" if how == "down" else "Ceil", t)
    size = scope.op("Abs", t)
    whole = scope.op("Floor", size)
    if how == "nearest_away":
        above = scope.op("GreaterOrEqual", scope.op("Sub", size, whole), scope.floats(0.5))
        whole = scope.op("Add", whole, scope.cast(above, "FLOAT"))
    return scope.op("Mul", whole, scope.op("Sign", t))


def _minifloat(scope: Scope, y: str, element: Minifloat, how: str) -> str:
    if element.nan_code is None:
        y = without_nan(scope, y)
    kind = native(element, scope.file.opset)
    if kind is not None and how == "nearest_even":
        from onnx import TensorProto

        limit = scope.floats(-element.max), scope.floats(element.max)
        y = scope.op("Clip", y, *limit)
        return scope.cast(scope.op("Cast", y, to=TensorProto.DataType.Value(kind)), "FLOAT")
    y = scope.op("Clip", y, scope.floats(-element.max), scope.floats(element.max))
    unit = _unit(scope, scope.op("Abs", y), element)
    return scope.op("Mul", rounded(scope, scope.op("Div", y, unit), how), unit)


def unsigned(scope: Scope, y: str, element: UnsignedMinifloat, how: str = "nearest_even") -> str:
    """y [...] -> the value of its code; what is below 0 becomes 0."""
    below = scope.op("Less", y, scope.floats(0.0))
    y = scope.op("Where", below, scope.floats(0.0), y)
    return _minifloat(scope, y, element.magnitudes, how)


def _unit(scope: Scope, size: str, element: Minifloat) -> str:
    """The distance of neighbouring values where |y| = size lies: a power of two."""
    lowest, top = 1 - element.bias, math.frexp(element.max)[1] - 1
    last = 2.0**-element.mantissa_bits
    if top - lowest < _FEW_BINADES:
        unit = scope.floats(2.0**top * last)
        for power in range(top - 1, lowest - 1, -1):
            below = scope.op("Less", size, scope.floats(2.0 ** (power + 1)))
            unit = scope.op("Where", below, scope.floats(2.0**power * last), unit)
        return unit
    power_of = scope.op("Max", power_of_two(scope, size), scope.floats(2.0**lowest))
    return scope.op("Mul", power_of, scope.floats(last))


def power_of_two(scope: Scope, size: str) -> str:
    """The largest power of two that is at most `size`, from its bits; from 2^-127 to 2^127."""
    from onnx import TensorProto

    scope.file.needs.at_least(24, "its exponents are computed by casts to e8m0")
    kind = TensorProto.FLOAT8E8M0
    return scope.cast(scope.op("Cast", size, to=kind, round_mode="down"), "FLOAT")


def _looked_up(scope: Scope, y: str, element: Element, wide: bool) -> str:
    """The value whose place is the number of thresholds below y, by bisection."""
    numbers = element.numbers(wide)
    assert numbers is not None
    y = without_nan(scope, y)
    sorted_values = np.array([numbers.values[code] for code in numbers.order], np.float32)
    bits = max(1, (len(numbers.thresholds)).bit_length())
    thresholds = np.full(2**bits, np.inf, np.float32)
    thresholds[: len(numbers.thresholds)] = numbers.thresholds
    table = scope.constant(thresholds)
    place = ""
    for bit in range(bits - 1, -1, -1):
        last = scope.constant(np.array(2**bit - 1, np.int32))
        at = scope.op("Add", place, last) if place else last
        above = scope.op("Greater", y, scope.op("Gather", table, at))
        step = scope.op(
            "Mul", scope.cast(above, "INT32"), scope.constant(np.array(2**bit, np.int32))
        )
        place = scope.op("Add", place, step) if place else step
    return scope.op("Gather", scope.constant(sorted_values), place)
