# SPDX-License-Identifier: BSD-3-Clause
"""Scales, zero points and codes as a profile chooses them."""

from collections.abc import Callable
from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor

from blockscale.core import reference
from blockscale.core.arithmetic.precision import divide, exponent, mantissa
from blockscale.core.block import Blocks
from blockscale.core.element import Element
from blockscale.core.elements.codebook import Codebook
from blockscale.core.format import Format
from blockscale.core.profiles.knobs import Encoder, Profile
from blockscale.core.reference import QParams
from blockscale.core.rounding import DETERMINISTIC, nearest_even
from blockscale.core.scale import FloatScale, PowerOfTwo
from blockscale.core.scales import TwoLevel

# Scales and zero points, in the arithmetic that a profile names.


class ChosenScales(NamedTuple):
    """What stands beside the codes, and what numbers are divided by.

    divisor: float32 [scale's shape]; with `reciprocal`, what numbers are multiplied by
    """

    qparams: QParams
    divisor: Tensor


def rounder(arithmetic: str, dtype: torch.dtype) -> Callable[[Tensor], Tensor]:
    """fl of a profile: float32 -> float32, rounded to the tensor's dtype where it says "input".

    Rounding a float32 result again is rounding once: bfloat16 and float16 have less than half of
    float32's bits (Figueroa, "When is double rounding innocuous?", 1995).
    """
    if arithmetic == "fp32" or dtype == torch.float32:
        return lambda t: t
    return lambda t: t.to(dtype).to(torch.float32)


def choose(x: Tensor, profile: Profile, fmt: Format) -> ChosenScales:
    """x [...] -> its scales; fmt: the result's format."""
    ranges = reference.extremes(Blocks(reference.widen(x), fmt.block), fmt)
    if isinstance(fmt.scale, FloatScale):
        return _float(x, profile, fmt)
    if isinstance(fmt.scale, PowerOfTwo):
        return _power(ranges, profile, fmt)
    assert isinstance(fmt.scale, TwoLevel)  # `Profile` refuses others
    return _two_level(ranges, profile, fmt, fmt.scale)


def _float(x: Tensor, profile: Profile, fmt: Format) -> ChosenScales:
    scale = fmt.scale
    assert isinstance(scale, FloatScale)
    fl = rounder(profile.scale_arithmetic, x.dtype)
    blocks = Blocks(reference.widen(x), fmt.block)
    low, high = blocks.range(bare=fmt.asym and not profile.widened)
    zeros = (low == 0) & (high == 0)
    size = _at_least(fl(_raw(low, high, profile, fmt, fl)).abs(), profile, x.dtype)
    if profile.zero_scale is not None:
        size = torch.where(zeros, profile.zero_scale, size)
    raw = size * _signs(x, low, high, profile, fmt)
    stored = scale.store_signed(raw) if profile.least is None else raw.to(scale.dtype)
    step = raw if profile.before_cast else scale.step(stored)
    zero = _zero_point(low, step, zeros, profile, fmt, fl) if fmt.asym else None
    code_fl = rounder(profile.code_arithmetic, x.dtype)
    return ChosenScales(QParams(stored, zero_point=zero), _divisor(step, profile, code_fl))


def _at_least(size: Tensor, profile: Profile, dtype: torch.dtype) -> Tensor:
    """The magnitudes of scales [...], and at least the smallest that the producer has."""
    own = dtype if profile.scale_arithmetic == "input" else torch.float32
    if profile.least is None:
        return size
    inputs = profile.least
    least = torch.finfo(own).smallest_normal if isinstance(inputs, str) else inputs
    smallest = torch.full((), least, dtype=own, device=size.device).to(torch.float32)
    return torch.maximum(size, smallest)


def _raw(
    low: Tensor, high: Tensor, profile: Profile, fmt: Format, fl: Callable[[Tensor], Tensor]
) -> Tensor:
    """What a float scale is rounded from."""
    if profile.levels is None and not fmt.asym:
        return reference.quotient(low, high, fmt)
    a = fl(high - low) if fmt.asym else torch.maximum(-low, high)
    return divide(a, fmt.levels.value if profile.levels is None else profile.levels)


def _signs(x: Tensor, low: Tensor, high: Tensor, profile: Profile, fmt: Format) -> Tensor:
    """1 or -1 for each block: with `sign` "largest" that of the first number of its magnitude."""
    sign = torch.full_like(low, -1.0 if (profile.levels or 1.0) < 0 else 1.0)
    if profile.sign == "positive":
        return sign
    largest = torch.maximum(-low, high)
    there = reference.widen(x).abs() == fmt.block.expand(largest, x.shape)
    behind = torch.arange(x.numel(), 0, -1, device=x.device, dtype=torch.float64).reshape(x.shape)
    last = Blocks(torch.where(there, behind, 0.0), fmt.block).range()[1]
    first = (x.numel() - last).long().clamp(max=max(x.numel() - 1, 0))
    negative = x.reshape(-1)[first] < 0 if x.numel() else torch.zeros_like(last, dtype=torch.bool)
    return torch.where(negative, -sign, sign)


def _divisor(step: Tensor, profile: Profile, fl: Callable[[Tensor], Tensor]) -> Tensor:
    return fl(step.reciprocal()) if profile.reciprocal else step


def _zero_point(
    low: Tensor,
    step: Tensor,
    zeros: Tensor,
    profile: Profile,
    fmt: Format,
    fl: Callable[[Tensor], Tensor],
) -> Tensor:
    lowest, highest = fmt.element.limits(fmt.wide)
    zero = fl(lowest - nearest_even(fl(low / step)))
    zero = torch.where(zero.isnan(), 0.0, zero).clamp(lowest, highest)
    if profile.zero_zero_point is not None:
        zero = torch.where(zeros, float(profile.zero_zero_point), zero)
    return zero.to(torch.int32)


def _power(ranges: reference.Ranges, profile: Profile, fmt: Format) -> ChosenScales:
    scale = fmt.scale
    assert isinstance(scale, PowerOfTwo)
    a = reference.numerator(ranges.low, ranges.high, fmt)
    stored = scale.store(a, fmt.levels, fmt.fraction_bits)
    if profile.logarithm:
        stored = _by_logarithm(a, fmt)
    if profile.zero_scale is not None:
        whole = exponent(torch.tensor(profile.zero_scale)) + fmt.fraction_bits + 127
        stored = torch.where(a == 0, whole.to(stored.device), stored).to(torch.uint8)
    stored = torch.where(ranges.poisoned, 255, stored)
    step = scale.step(stored, fmt.fraction_bits)
    if profile.smallest_divisor is not None:
        step = torch.where(stored == 0, profile.smallest_divisor, step)
    return ChosenScales(QParams(stored), _divisor(step, profile, lambda t: t))


def _by_logarithm(a: Tensor, fmt: Format) -> Tensor:
    """The byte of ceil(fl(log2(fl(a / L)))), by integers.

    log2(2^n (1 + m 2^-23)) rounds to n if m / ln 2 is at most half the distance from n to the next
    float32, 2^(e-24), where e is the exponent of that distance's binade: m <= ln 2 * 2^(e-1).
    """
    quotient = divide(a, fmt.levels.value)
    value = torch.where(quotient > 0, quotient, 1.0)
    n = exponent(value)
    above = n.abs() - (n < 0).to(n.dtype)  # the binade on the side of larger numbers
    e = exponent(above.clamp(min=1).to(torch.float32))
    threshold = torch.full_like(n, 22) >> (6 - e)  # floor(ln 2 * 2^(e-1)), e = 0 ... 6
    byte = (n + (mantissa(value) > threshold) + fmt.fraction_bits).clamp(-127, 127) + 127
    return torch.where(quotient > 0, byte, 0).to(torch.uint8)


def _two_level(
    ranges: reference.Ranges, profile: Profile, fmt: Format, scale: TwoLevel[Format]
) -> ChosenScales:
    a = reference.numerator(ranges.low, ranges.high, fmt)
    block = scale.inner.block
    if profile.outer is None:
        largest = Blocks(torch.where(ranges.poisoned, 0.0, a), block).range()[1]
        outer = divide(largest, fmt.levels.value * scale.largest)
    else:
        outer = torch.full(
            block.scale_shape(a.shape), profile.outer, dtype=torch.float32, device=a.device
        )
    codes = scale.poison(
        scale.encode(scale.in_outer(divide(a, fmt.levels.value), outer)), ranges.poisoned
    )
    qparams = QParams(codes, outer.to(scale.outer_type.dtype))
    if not profile.reciprocal:
        return ChosenScales(qparams, scale.step(*qparams[:2]))  # type: ignore[arg-type]
    each = block.expand(outer, codes.shape)
    return ChosenScales(qparams, each.reciprocal() / scale.values(codes))


def encode(x: Tensor, scales: ChosenScales, profile: Profile, fmt: Format) -> Tensor:
    """x [...] and its scales -> codes [...] of the element's code_dtype."""
    fl = rounder(profile.code_arithmetic, x.dtype)
    wide = reference.widen(x)
    divisor = fmt.block.expand(scales.divisor, x.shape)
    y = fl(wide * divisor if profile.reciprocal else wide / divisor)
    zero = reference.expand_zero_point(scales.qparams.zero_point, fmt, x.shape)
    element, search = fmt.element, profile.search
    if search == "half_up_add":
        codes = _half_up_add(y, zero, fmt)
    elif search == "first_nearest":
        table, rest = first_of_equals(element)
        codes = torch.tensor(rest, device=x.device)[table.encode(y, _ROUND, None, False).long()]
        codes = codes.to(element.code_dtype)
    else:
        rounding = DETERMINISTIC[fmt.rounding if search == "format" else search]
        codes = element.encode(y, rounding, zero, fmt.wide)
    if not profile.negative_zero and (minus := _negative_zero(element)) is not None:
        codes = torch.where(codes == minus, 0, codes).to(codes.dtype)
    return codes


_ROUND = DETERMINISTIC["nearest_even"]  # codebooks have no rounding


def _half_up_add(y: Tensor, zero: Tensor | None, fmt: Format) -> Tensor:
    """The integer part of fl(y + 1/2 - z), with z what makes it positive (ggml's quantizers)."""
    lowest, highest = fmt.element.limits(fmt.wide)
    shift = -lowest if zero is None else zero - lowest
    steps = (torch.where(y.isnan(), 0.0, y) + (shift + 0.5)).trunc() + lowest
    return steps.clamp(lowest, highest).to(fmt.element.code_dtype)


@cache
def first_of_equals(element: Element) -> tuple[Codebook, tuple[int, ...]]:
    """An element as a table in which no value is there twice, and the codes that its places are.

    -0 is 0, and where two values are as near, the one nearer to 0 is taken.
    """
    values = element.decode(element.from_bits(torch.arange(2**element.bits))).tolist()
    places: dict[float, int] = {}
    for code, value in enumerate(values):
        if abs(value) < float("inf"):
            places.setdefault(value, code)  # -0.0 == 0.0
    return Codebook(element.name, tuple(places), "zero"), tuple(places.values())


@cache
def _negative_zero(element: Element) -> int | None:
    """The code of -0, if there is one."""
    if element.integer:
        return None
    values = element.decode(element.from_bits(torch.arange(2**element.bits)))
    minus = ((values == 0) & values.signbit()).nonzero().flatten().tolist()
    return int(minus[0]) if minus else None


# Quantize as a producer does: plain PyTorch, the same bits on every device.


def quantize(x: Tensor, profile: Profile) -> tuple[Tensor, QParams, Format]:
    """x [...] -> codes [...], what stands beside them and the format that says what they mean.

    Raises TypeError for a dtype other than float32, bfloat16 and float16, ValueError for a block
    that does not fit x, or that the producer refuses.
    """
    reference.widen(x[:0] if x.ndim else x)
    fmt = profile.result(x.dtype)
    profile.check_blocks(x.shape)
    if profile.contract:
        qparams = reference.choose_qparams(x, fmt)
        return reference.quantize(x, qparams, fmt), qparams, fmt
    if profile.encoder is not None:
        return (*_encoded(x, profile.encoder, fmt), fmt)
    choice = choose(x, profile, fmt)
    return encode(x, choice, profile, fmt), choice.qparams, fmt


def _encoded(x: Tensor, encoder: Encoder, fmt: Format) -> tuple[Tensor, QParams]:
    """Codes and scales by an encoder, which sees finite numbers; what is not is the contract's."""
    wide = reference.widen(x)
    finite = wide.isfinite()
    if bool(finite.all()):
        return encoder(x, fmt)
    blocks = Blocks(wide, fmt.block)
    low, high = (fmt.block.expand(end, x.shape) for end in blocks.range(bare=True))
    finite_values = torch.where(finite, wide, torch.where(wide > 0, high, low))
    codes, qparams = encoder(finite_values.masked_fill(wide.isnan(), 0.0).to(x.dtype), fmt)
    if fmt.element.nan_code is not None:
        codes = torch.where(wide.isnan(), fmt.element.nan_code, codes).to(codes.dtype)
    if not fmt.scale.poisons:
        return codes, qparams
    nan = fmt.scale.inner.element.nan_code if isinstance(fmt.scale, TwoLevel) else 255
    stored = torch.where(blocks.poisoned(), nan or 0, qparams.scale)
    return codes, qparams._replace(scale=stored.to(qparams.scale.dtype))
