# SPDX-License-Identifier: BSD-3-Clause
"""Quantizing by ONNX's operators: the value of a number of steps, and the scale of a block
(numerics.md, sections 2 to 4).

The result is the value and not its code: between quantizing and dequantizing in one function
nobody sees codes, and a value says the same. Elements with few values per sign are looked up by
bisection; integers and small floats are rounded."""

import math
from dataclasses import dataclass

import numpy as np

from blockscale.core.arithmetic.precision import FLT_MAX
from blockscale.core.element import Element
from blockscale.core.elements.binary import Binary
from blockscale.core.elements.integer import Integer
from blockscale.core.elements.minifloat import Minifloat, UnsignedMinifloat
from blockscale.core.format import Format
from blockscale.core.scale import FloatScale, PowerOfTwo
from blockscale.core.scales import CodeScale, TwoLevel
from blockscale.export.to_onnx.scope import BlockedTensor, Scope, native

_FEW_BINADES = 4  # so many are distinguished by comparisons, more by the type e8m0


def refusal(fmt: Format) -> str | None:
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


# The scale of each block from its elements, by ONNX's operators (docs/numerics.md, section 3).


_TERNARY = 0.699999988079071044921875  # the float32 nearest to 0.7 (docs/numerics.md, 3.2)
_SQRT2 = 1.0 + 0x3504F3 * 2.0**-23  # the float32 just below the square root of 2


@dataclass(frozen=True)
class ChosenScale:
    """step: of each block; inverse: what x is multiplied by in place of a division, or empty;
    zero: the zero point of each block as floats, or empty."""

    step: str
    inverse: str = ""
    zero: str = ""


@dataclass(frozen=True)
class _Range:
    low: str
    high: str
    poison: str  # NaN for blocks with a NaN or an infinity, else 0


def scales_refused(fmt: Format) -> str | None:
    """Why a file cannot choose scales of a format, or None."""
    if fmt.unchosen:
        return fmt.unchosen
    if fmt.offset is not None:
        return "dynamic offsets cannot be written: use asym"
    if fmt.compares:
        other = "nvfp4" if fmt == fmt.plain else str(fmt.plain)
        return f"no operator compares the errors of two scales: use {other}"
    if isinstance(fmt.scale, TwoLevel) and fmt.scale.inner.block.name != "tensor":
        return (
            f"the outer scales of {fmt.scale} are for parts of a tensor: use one for the "
            "whole tensor"
        )
    return None


def choose(scope: Scope, x: BlockedTensor, fmt: Format) -> ChosenScale:
    """The step, and the zero point where there is one, of each block of x; axes of size 1."""
    span = _range(scope, x, fmt)
    scale = fmt.scale
    if isinstance(scale, PowerOfTwo):
        choice = ChosenScale(_power_of_two(scope, span, fmt, scale))
    elif isinstance(scale, TwoLevel):
        choice = _two_levels(scope, span, fmt, scale)
    elif isinstance(scale, CodeScale):
        step = _code(scope, _quotient(scope, span, fmt), scale, span.poison)
        choice = ChosenScale(step, _reciprocal(scope, step) if fmt.recip else "")
    else:
        step = _float(scope, _quotient(scope, span, fmt), fmt, scale)
        choice = ChosenScale(step, _reciprocal(scope, step) if fmt.recip else "")
    if not fmt.asym:
        return choice
    return ChosenScale(choice.step, choice.inverse, _zero(scope, span.low, choice.step, fmt))


def _reciprocal(scope: Scope, step: str) -> str:
    inverse = scope.op("Reciprocal", step)
    return scope.op("Clip", inverse, scope.floats(-FLT_MAX), scope.floats(FLT_MAX))


def _range(scope: Scope, x: BlockedTensor, fmt: Format) -> _Range:
    """The smallest and largest finite value of each block, or the mean that stands for them."""
    nothing = scope.op("Sub", x.x, x.x)  # NaN where x is not finite
    odd = scope.op("IsNaN", nothing)
    finite = scope.op("Where", odd, scope.floats(0.0), x.x)
    axes = scope.ints(*x.axes)

    def reduced(kind: str, value: str) -> str:
        return scope.op(kind, value, axes, keepdims=1) if x.axes else value

    poison = reduced("ReduceSum", nothing) if fmt.scale.poisons else ""
    if not fmt.element.uses_range:
        mean = _mean(scope, reduced, finite, odd, fmt)
        return _Range(scope.op("Neg", mean), mean, poison)
    zero = scope.floats(0.0)
    plain = fmt.element.signed and not (fmt.asym or fmt.two_sided or fmt.span == "signed")
    if plain:  # only the larger magnitude counts
        high = reduced("ReduceMax", scope.op("Abs", finite))
        return _Range(scope.op("Neg", high), high, poison)
    low = scope.op("Min", reduced("ReduceMin", finite), zero)
    return _Range(low, scope.op("Max", reduced("ReduceMax", finite), zero), poison)


def _mean(scope: Scope, reduced: object, finite: str, odd: str, fmt: Format) -> str:
    """The mean of magnitudes, summed as integers: of all, or of those above ternary's threshold."""
    size = scope.op("Abs", finite)
    largest = reduced("ReduceMax", size)  # type: ignore[operator]
    none = scope.op("Equal", largest, scope.floats(0.0))
    power = scope.op("Max", power_of_two(scope, largest), scope.floats(2.0**-126))
    power = scope.op("Where", none, scope.floats(1.0), power)
    there = scope.op("Not", odd)
    mean = _mean_of(scope, reduced, size, there, power)
    if fmt.element.name != "ternary":
        return mean
    threshold = scope.op("Mul", mean, scope.floats(_TERNARY))
    there = scope.op("And", there, scope.op("Greater", size, threshold))
    return _mean_of(scope, reduced, size, there, power)


def _mean_of(scope: Scope, reduced: object, size: str, there: str, power: str) -> str:
    units = scope.op("Mul", scope.op("Div", size, power), scope.floats(2.0**30))
    units = scope.cast(scope.op("Floor", units), "INT64")
    units = scope.op("Where", there, units, scope.constant(np.array(0, np.int64)))
    total = scope.cast(reduced("ReduceSum", units), "FLOAT")  # type: ignore[operator]
    count = reduced("ReduceSum", scope.cast(there, "INT64"))  # type: ignore[operator]
    count = scope.op("Max", count, scope.constant(np.array(1, np.int64)))
    mean = scope.op("Div", total, scope.cast(count, "FLOAT"))
    return scope.op("Mul", scope.op("Mul", mean, scope.floats(2.0**-30)), power)


def _numerator(scope: Scope, span: _Range, fmt: Format) -> str:
    if fmt.asym:
        return scope.op("Min", scope.op("Sub", span.high, span.low), scope.floats(FLT_MAX))
    if not fmt.element.signed:
        return span.high
    return scope.op("Max", scope.op("Neg", span.low), span.high)


def _quotient(scope: Scope, span: _Range, fmt: Format) -> str:
    """a / L, what a float scale is rounded from."""
    lowest, highest = fmt.element.limits(fmt.wide)
    if fmt.span == "signed":
        larger = scope.op("GreaterOrEqual", span.high, scope.op("Neg", span.low))
        value = scope.op("Where", larger, span.high, span.low)
        return scope.op("Div", value, scope.floats(lowest))
    if fmt.two_sided:
        parts = (span.high, highest), (span.low, lowest)
        return scope.op("Max", *(scope.op("Div", x, scope.floats(by)) for x, by in parts))
    return scope.op("Div", _numerator(scope, span, fmt), scope.floats(fmt.levels.value))


def _float(scope: Scope, raw: str, fmt: Format, scale: FloatScale) -> str:
    """The quotient as the scale's type holds it, in float32."""
    sign = ""
    if fmt.span == "signed":
        negative = scope.op("Less", raw, scope.floats(0.0))
        sign = scope.op("Where", negative, scope.floats(-1.0), scope.floats(1.0))
        raw = scope.op("Abs", raw)
    step = stored_float(scope, raw, scale)
    return scope.op("Mul", step, sign) if sign else step


def stored_float(scope: Scope, raw: str, scale: FloatScale) -> str:
    """Numbers as floats of a scale's type and range, in float32."""
    kinds = {"fp16": "FLOAT16", "bf16": "BFLOAT16"}
    if scale.name in kinds:
        raw = scope.cast(scope.cast(raw, kinds[scale.name]), "FLOAT")
    return scope.op("Clip", raw, scope.floats(scale.low), scope.floats(scale.high))


def _code(scope: Scope, raw: str, scale: CodeScale, poison: str) -> str:
    """Quotients -> the values of their codes, NaN where a block is poisoned."""
    assert isinstance(scale.element, UnsignedMinifloat)
    raw = scope.op("Clip", raw, scope.floats(scale.low), scope.floats(scale.high))
    step = unsigned(scope, raw, scale.element)
    return scope.op("Add", step, poison) if poison else step


def _power_of_two(scope: Scope, span: _Range, fmt: Format, scale: PowerOfTwo) -> str:
    """2^n of section 3.4: the power of two below the numerator, or the next one."""
    a, levels = _numerator(scope, span, fmt), fmt.levels
    emax = levels.emax
    if scale.rule == "nearest":  # of the quotient, of which e8m0 has to hold the exponent, too
        emax = fmt.fraction_bits
        a = scope.op("Div", a, scope.floats(levels.value))
        a = scope.op("Mul", a, scope.floats(2.0**emax)) if emax else a
    power = power_of_two(scope, a)
    step = scope.op("Mul", power, scope.floats(2.0**-emax))
    if scale.rule != "floor":
        mantissa = scope.op("Div", a, power)
        if scale.rule == "nearest":
            up = scope.op("Greater", mantissa, scope.floats(_SQRT2))
        else:
            least = 1.0 + levels.threshold(scale.rule) * 2.0**-23
            up = scope.op("GreaterOrEqual", mantissa, scope.floats(least))
        step = scope.op("Where", up, scope.op("Mul", step, scope.floats(2.0)), step)
    low, high = (-127, 127) if scale.byte else (-126, 127)
    limits = (math.ldexp(1.0, n - fmt.fraction_bits) for n in (low, high))
    step = scope.op("Clip", step, *(scope.floats(limit) for limit in limits))
    return scope.op("Add", step, span.poison) if span.poison else step


def _two_levels(scope: Scope, span: _Range, fmt: Format, scale: "TwoLevel[Format]") -> ChosenScale:
    a, inner = _numerator(scope, span, fmt), scale.inner
    whole = a
    if span.poison:
        whole = scope.op("Where", scope.op("IsNaN", span.poison), scope.floats(0.0), a)
    largest = scope.op("ReduceMax", whole, keepdims=1)
    divisor = scope.floats(fmt.levels.value * scale.largest)
    quotient = (divisor, scope.op("Abs", largest)) if scale.reciprocal else (largest, divisor)
    outer = stored_float(scope, scope.op("Div", *quotient), scale.outer_type)
    block_step = scope.op("Div", a, scope.floats(fmt.levels.value))
    ratio = scope.op("Mul" if scale.reciprocal else "Div", block_step, outer)
    low = scope.floats(inner.element.smallest_normal)
    ratio = scope.op("Clip", ratio, low, scope.floats(scale.largest))
    codes = encoded(scope, ratio, inner)
    step = scope.op("Div", codes, outer) if scale.reciprocal else scope.op("Mul", outer, codes)
    step = scope.op("Add", step, span.poison) if span.poison else step
    if not fmt.recip:
        return ChosenScale(step)
    if scale.reciprocal:
        return ChosenScale(step, _reciprocal(scope, step))
    inverse = scope.op("Div", scope.op("Reciprocal", outer), codes)
    return ChosenScale(
        step, scope.op("Clip", inverse, scope.floats(-FLT_MAX), scope.floats(FLT_MAX))
    )


def _zero(scope: Scope, low: str, step: str, fmt: Format) -> str:
    """The zero point of each block, as floats (section 3.6)."""
    lowest, highest = (scope.floats(limit) for limit in fmt.element.limits(fmt.wide))
    steps = scope.op("Div", low, step)
    if fmt.zero is None:
        zero = scope.op("Sub", lowest, scope.op("Round", steps))
        zero = scope.op("Where", scope.op("IsNaN", zero), scope.floats(0.0), zero)
        return scope.op("Clip", zero, lowest, highest)
    zero = scope.op("Sub", lowest, steps)
    zero = scope.op("Where", scope.op("IsNaN", zero), scope.floats(0.0), zero)
    high = min(fmt.zero.high, FLT_MAX)
    kinds = {"fp16": "FLOAT16", "bf16": "BFLOAT16"}
    zero = scope.op("Clip", zero, scope.floats(-high), scope.floats(high))
    if fmt.zero.name in kinds:
        zero = scope.cast(scope.cast(zero, kinds[fmt.zero.name]), "FLOAT")
    return scope.op("Clip", zero, scope.floats(-high), scope.floats(high))
