# SPDX-License-Identifier: BSD-3-Clause
"""A format as the numbers that CUDA kernels are compiled for."""

import struct
from dataclasses import dataclass, fields, replace
from functools import cache, cached_property

from blockscale.core.elements.minifloat import UnsignedMinifloat
from blockscale.core.parse import parse
from blockscale.core.scales import CodeScale
from blockscale.kernels.numbers import FormatNumbers, lowered, supports_families
from blockscale.kernels.registry import ByFormats

FAMILIES = ("integer", "minifloat", "binary", "codebook")  # of elements, that device code knows
FEATURES = ("nd", "offset", "float_zero")  # of FormatNumbers.features, that device code knows
known = ByFormats(supports_families(FAMILIES, FEATURES))  # and every dtype, shape and layout
primitive = ByFormats(supports_families(FAMILIES, (*FEATURES, "code")))  # what the primitives know

_LARGEST = 2.0**90  # of the magnitudes of ordinary blocks


@dataclass(frozen=True)
class Spec(FormatNumbers):
    """The numbers of a format, and what only these kernels ask. Triton compiles once for each.

    Scales that are codes by themselves (`ue5m3`) are the kind "code"; `inner` is then the minifloat
    with a sign whose magnitudes they are.

    least: the bits of a magnitude that makes a block's step more than 2^-38; a mean may be as
           little as 2^-15 of its block's largest
    most: the bits of a magnitude that makes a block's step at most 1
    largest: the bits of the largest magnitude of an ordinary block
    smallest_step: the smallest scale of the kind "code" that is chosen
    """

    least: int
    most: int
    largest: int
    smallest_step: float

    @cached_property
    def _hash(self) -> int:
        return hash(tuple(getattr(self, each.name) for each in fields(self)))

    @property
    def adds_zeros(self) -> bool:
        """Whether zero points are added after rounding: those that are no integers are before."""
        return self.asym and not self.zero

    @cached_property
    def per_level(self) -> float:
        """fl(1 / levels)"""
        return float(struct.unpack("<f", struct.pack("<f", 1 / self.levels))[0])

    def __hash__(self) -> int:
        return self._hash  # Triton asks at each launch


@cache
def spec(spelling: str) -> Spec:
    """The numbers of the format of this name or spelling.

    Raises TypeError if its elements have none: `supports` keeps those from here.
    """
    numbers, fmt = lowered(spelling), parse(spelling)
    shared = {field.name: getattr(numbers, field.name) for field in fields(numbers)}
    smallest = 2.0 ** (-19 if numbers.element.bits <= 2 else -36)
    largest, step = _LARGEST, 0.0
    if isinstance(fmt.scale, CodeScale):
        assert isinstance(fmt.scale.element, UnsignedMinifloat)
        shared |= {"scale": "code", "inner": fmt.scale.element.magnitudes.numbers(False)}
        if fmt.two_sided:
            shared |= {"full": True, "statistic": "range"}
        largest, step = min(_LARGEST, numbers.levels * fmt.scale.high), fmt.scale.low
    return Spec(
        **shared,
        least=_bits(max(numbers.levels, 1.0) * smallest),
        most=_bits(numbers.levels / 4),
        largest=_bits(largest),
        smallest_step=step,
    )


def of_gradient(spec: Spec) -> Spec:
    """The same with the rounding of the straight-through mask (docs/numerics.md, 5)."""
    return replace(spec, rounding="nearest_even") if spec.rounding == "stochastic" else spec


def _bits(value: float) -> int:
    """Of a float32."""
    return int(struct.unpack("<i", struct.pack("<f", value))[0])
