# SPDX-License-Identifier: BSD-3-Clause
"""The scale of each block from its elements, by ONNX's operators (docs/numerics.md, section 3)."""

import math
from dataclasses import dataclass

import numpy as np

from blockscale.core.arithmetic.bits import FLT_MAX
from blockscale.core.elements.minifloat import UnsignedMinifloat
from blockscale.core.format import Format
from blockscale.core.scale import FloatScale, PowerOfTwo
from blockscale.core.scales import CodeScale, TwoLevel
from blockscale.export.to_onnx.encode import encoded, power_of_two, unsigned
from blockscale.export.to_onnx.scope import Scope
from blockscale.export.to_onnx.split import Split

_TERNARY = 0.699999988079071044921875  # the float32 nearest to 0.7 (docs/numerics.md, 3.2)
_SQRT2 = 1.0 + 0x3504F3 * 2.0**-23  # the float32 just below the square root of 2


@dataclass(frozen=True)
class Chosen:
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


def refused(fmt: Format) -> str | None:
    """Why a file cannot choose scales of a format, or None."""
    if fmt.unchosen:
        return fmt.unchosen
    if fmt.offset is not None:
        return "dynamic offsets cannot be written: use asym"
    if isinstance(fmt.scale, TwoLevel) and fmt.scale.inner.block.name != "tensor":
        return (
            f"the outer scales of {fmt.scale} are for parts of a tensor: use one for the "
            "whole tensor"
        )
    return None


def choose(scope: Scope, x: Split, fmt: Format) -> Chosen:
    """The step, and the zero point where there is one, of each block of x; axes of size 1."""
    found = _range(scope, x, fmt)
    scale = fmt.scale
    if isinstance(scale, PowerOfTwo):
        chosen = Chosen(_power_of_two(scope, found, fmt, scale))
    elif isinstance(scale, TwoLevel):
        chosen = _two_levels(scope, found, fmt, scale)
    elif isinstance(scale, CodeScale):
        step = _code(scope, _quotient(scope, found, fmt), scale, found.poison)
        chosen = Chosen(step, _reciprocal(scope, step) if fmt.recip else "")
    else:
        step = _float(scope, _quotient(scope, found, fmt), fmt, scale)
        chosen = Chosen(step, _reciprocal(scope, step) if fmt.recip else "")
    if not fmt.asym:
        return chosen
    return Chosen(chosen.step, chosen.inverse, _zero(scope, found.low, chosen.step, fmt))


def _reciprocal(scope: Scope, step: str) -> str:
    inverse = scope.op("Reciprocal", step)
    return scope.op("Clip", inverse, scope.floats(-FLT_MAX), scope.floats(FLT_MAX))


def _range(scope: Scope, x: Split, fmt: Format) -> _Range:
    """The smallest and largest finite value of each block, or the mean that stands for them."""
    nothing = scope.op("Sub", x.x, x.x)  # NaN where x is not finite
    odd = scope.op("IsNaN", nothing)
    finite = scope.op("Where", odd, scope.floats(0.0), x.x)
    axes = scope.ints(*x.axes)

    def reduced(kind: str, value: str) -> str:
        return scope.op(kind, value, axes, keepdims=1) if x.axes else value

    poison = reduced("ReduceSum", nothing) if fmt.scale.poisons else ""
    if not fmt.element.ranged:
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


def _numerator(scope: Scope, found: _Range, fmt: Format) -> str:
    if fmt.asym:
        return scope.op("Min", scope.op("Sub", found.high, found.low), scope.floats(FLT_MAX))
    if not fmt.element.signed:
        return found.high
    return scope.op("Max", scope.op("Neg", found.low), found.high)


def _quotient(scope: Scope, found: _Range, fmt: Format) -> str:
    """a / L, what a float scale is rounded from."""
    lowest, highest = fmt.element.limits(fmt.wide)
    if fmt.span == "signed":
        larger = scope.op("GreaterOrEqual", found.high, scope.op("Neg", found.low))
        value = scope.op("Where", larger, found.high, found.low)
        return scope.op("Div", value, scope.floats(lowest))
    if fmt.two_sided:
        parts = (found.high, highest), (found.low, lowest)
        return scope.op("Max", *(scope.op("Div", x, scope.floats(by)) for x, by in parts))
    return scope.op("Div", _numerator(scope, found, fmt), scope.floats(fmt.levels.value))


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


def _power_of_two(scope: Scope, found: _Range, fmt: Format, scale: PowerOfTwo) -> str:
    """2^n of section 3.4: the power of two below the numerator, or the next one."""
    a, levels = _numerator(scope, found, fmt), fmt.levels
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
    return scope.op("Add", step, found.poison) if found.poison else step


def _two_levels(scope: Scope, found: _Range, fmt: Format, scale: "TwoLevel[Format]") -> Chosen:
    a, inner = _numerator(scope, found, fmt), scale.inner
    whole = a
    if found.poison:
        whole = scope.op("Where", scope.op("IsNaN", found.poison), scope.floats(0.0), a)
    largest = scope.op("ReduceMax", whole, keepdims=1)
    divisor = scope.floats(fmt.levels.value * scale.largest)
    quotient = (divisor, scope.op("Abs", largest)) if scale.reciprocal else (largest, divisor)
    outer = stored_float(scope, scope.op("Div", *quotient), scale.outer_type)
    wanted = scope.op("Div", a, scope.floats(fmt.levels.value))
    ratio = scope.op("Mul" if scale.reciprocal else "Div", wanted, outer)
    low = scope.floats(inner.element.smallest_normal)
    ratio = scope.op("Clip", ratio, low, scope.floats(scale.largest))
    codes = encoded(scope, ratio, inner)
    step = scope.op("Div", codes, outer) if scale.reciprocal else scope.op("Mul", outer, codes)
    step = scope.op("Add", step, found.poison) if found.poison else step
    if not fmt.recip:
        return Chosen(step)
    if scale.reciprocal:
        return Chosen(step, _reciprocal(scope, step))
    inverse = scope.op("Div", scope.op("Reciprocal", outer), codes)
    return Chosen(step, scope.op("Clip", inverse, scope.floats(-FLT_MAX), scope.floats(FLT_MAX)))


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
