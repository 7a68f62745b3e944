"""A Format as the numbers that kernels are compiled for."""

import math
import struct
from dataclasses import dataclass, fields, replace
from functools import cache, cached_property

from blockscale.core.element import Element
from blockscale.core.elements.binary import Binary
from blockscale.core.elements.integer import Integer
from blockscale.core.elements.minifloat import Minifloat
from blockscale.core.elements.ternary import Ternary
from blockscale.core.format import Format
from blockscale.core.parse import parse
from blockscale.core.scale import FloatScale, PowerOfTwo, TwoLevel


@dataclass(frozen=True)
class ElementNumbers:
    """One family of elements: what encoding and decoding need (docs/numerics.md, 1.1).

    family: "integer" (and ternary), "minifloat" (and logarithmic) or "binary"
    low, high: the smallest and largest code of an integer, else the range of the values
    mbits, bias, max_code: of a minifloat; max_code is the largest that is a number
    nan, infinity: the magnitude codes that mean so, or -1
    """

    family: str
    bits: int
    signed: bool
    low: float
    high: float
    mbits: int = 0
    bias: int = 0
    max_code: int = 0
    nan: int = -1
    infinity: int = -1


@dataclass(frozen=True)
class Spec:
    """A format without its block. Frozen and hashable: Triton compiles once for each.

    statistic: "magnitude", "high", "range", "mean" or "mean_above" (3.1, 3.2)
    scale: "fp32", "fp16", "bf16", "pow2", "e8m0" or "two_level"
    threshold: T of 3.4; `nearest`: that rule in its place
    emax, levels: of L; fraction_bits: f of 1.3
    full: the quotient of 3.1 that has a divisor for each sign
    inner: the element of the scale's own format, with `outer_levels` = L * Lc (3.5)
    least: the bits of a magnitude that makes a block's step more than 2^-38; a mean may be as
           little as 2^-15 of its block's largest
    most: the bits of a magnitude that makes a block's step at most 1
    """

    element: ElementNumbers
    statistic: str
    scale: str
    nearest: bool
    threshold: int
    emax: int
    levels: float
    fraction_bits: int
    full: bool
    asym: bool
    recip: bool
    poisons: bool
    rounding: str
    inner: ElementNumbers | None
    inner_smallest: float
    outer_levels: float
    least: int
    most: int

    @cached_property
    def _hash(self) -> int:
        return hash(tuple(getattr(self, each.name) for each in fields(self)))

    @cached_property
    def per_level(self) -> float:
        """fl(1 / levels)"""
        return float(struct.unpack("<f", struct.pack("<f", 1 / self.levels))[0])

    def __hash__(self) -> int:
        return self._hash  # Triton asks at each launch


@cache
def spec(spelling: str) -> Spec:
    """The numbers of the format of this name or spelling."""
    fmt = parse(spelling)
    scale = fmt.scale
    rule = scale.rule if isinstance(scale, PowerOfTwo) else ""
    two = isinstance(scale, TwoLevel)
    full = fmt.span == "full" and isinstance(scale, FloatScale)
    inner = scale.inner.element if isinstance(scale, TwoLevel) else None
    return Spec(
        element=element_numbers(fmt.element, fmt.wide),
        statistic=_statistic(fmt, full),
        scale="two_level" if two else str(scale).partition("/")[0],
        nearest=rule == "nearest",
        threshold=fmt.levels.threshold(rule) if rule and rule != "nearest" else 0,
        emax=fmt.levels.emax,
        levels=fmt.levels.value,
        fraction_bits=fmt.fraction_bits,
        full=full,
        asym=fmt.asym,
        recip=fmt.recip,
        poisons=scale.poisons,
        rounding=fmt.rounding,
        inner=None if inner is None else element_numbers(inner, False),
        inner_smallest=0.0 if inner is None else inner.smallest_normal,
        outer_levels=0.0 if inner is None else fmt.levels.value * inner.max,
        least=_bits(max(fmt.levels.value, 1.0) * 2.0 ** (-19 if fmt.element.bits <= 2 else -36)),
        most=_bits(fmt.levels.value / 4),
    )


def of_gradient(spec: Spec) -> Spec:
    """The same with the rounding of the straight-through mask (docs/numerics.md, 5)."""
    return replace(spec, rounding="nearest_even") if spec.rounding == "stochastic" else spec


def element_numbers(element: Element, wide: bool) -> ElementNumbers:
    """What kernels need of an element; `wide` admits -2^(bits-1)."""
    bits, signed = element.bits, element.signed
    if isinstance(element, Binary):
        return ElementNumbers("binary", bits, signed, -1.0, 1.0)
    if isinstance(element, Integer):
        return ElementNumbers("integer", bits, signed, *element.limits(wide))
    if not isinstance(element, Minifloat):
        raise TypeError(f"no CUDA kernel knows elements such as {element.name}")
    infinities = [code for code, value in enumerate(element.values()) if math.isinf(value)]
    return ElementNumbers(
        "minifloat", bits, signed, -element.max, element.max, element.mbits, element.bias,
        element.max_code, -1 if element.nan_code is None else element.nan_code,
        infinities[0] if infinities else -1,
    )  # fmt: skip


def _bits(value: float) -> int:
    """Of a float32."""
    return int(struct.unpack("<i", struct.pack("<f", value))[0])


def _statistic(fmt: Format, full: bool) -> str:
    if isinstance(fmt.element, Ternary):
        return "mean_above"
    if isinstance(fmt.element, Binary):
        return "mean"
    if fmt.asym or full:
        return "range"
    return "magnitude" if fmt.element.signed else "high"
