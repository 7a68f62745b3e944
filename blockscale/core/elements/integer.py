# SPDX-License-Identifier: BSD-3-Clause
"""Integers, two's complement or unsigned: `int8`, `uint4`."""

import re
from dataclasses import dataclass

import torch
from torch import Tensor

from blockscale.core.element import Element, ElementNumbers
from blockscale.core.rounding import Round, finite

SPELLINGS = "int2 … int16, uint1 … uint16"
EXAMPLES = (
    *(f"int{bits}" for bits in range(2, 17)),
    *(f"uint{bits}" for bits in range(1, 17)),
)


@dataclass(frozen=True)
class Integer(Element):
    """`Integer(8)` is int8: -127 ... 127, or from -128 where a format asks for the wide range."""

    bits: int = 8
    signed: bool = True

    @property
    def name(self) -> str:
        return f"{'' if self.signed else 'u'}int{self.bits}"

    @property
    def max(self) -> float:
        return float(2 ** (self.bits - self.signed) - 1)

    @property
    def smallest(self) -> float:
        return 1.0

    @property
    def mbits(self) -> int:
        return self.bits - 1 - self.signed

    @property
    def fraction_bits(self) -> int:
        return self.mbits  # the element is a fixed-point number below 2

    @property
    def grain(self) -> int | None:
        return 0

    @property
    def code_dtype(self) -> torch.dtype:
        if self.signed:
            return torch.int8 if self.bits <= 8 else torch.int16
        return torch.uint8 if self.bits <= 8 else torch.int32

    @property
    def integer(self) -> bool:
        return True

    def limits(self, wide: bool) -> tuple[float, float]:
        if not self.signed:
            return 0.0, self.max
        return -self.max - wide, self.max

    def encode(self, y: Tensor, rounding: Round, zero_point: Tensor | None, wide: bool) -> Tensor:
        steps = torch.where(y.isnan(), 0.0, rounding(y))
        if zero_point is not None:
            steps = steps + zero_point
        return steps.clamp(*self.limits(wide)).to(self.code_dtype)

    def decode(self, codes: Tensor) -> Tensor:
        return codes.to(torch.float32)

    def in_range(self, y: Tensor, rounding: Round, zero_point: Tensor | None, wide: bool) -> Tensor:
        steps = rounding(finite(y))
        if zero_point is not None:
            steps = steps + zero_point
        low, high = self.limits(wide)
        return y.isfinite() & (steps >= low) & (steps <= high)

    def numbers(self, wide: bool) -> ElementNumbers:
        low, high = self.limits(wide)
        statistic = "magnitude" if self.signed else "high"
        return ElementNumbers("integer", self.bits, self.signed, low, high, 1.0, statistic)

    def from_bits(self, patterns: Tensor) -> Tensor:
        if self.signed:  # spread the sign bit
            patterns = patterns - ((patterns >> (self.bits - 1)) << self.bits)
        return patterns.to(self.code_dtype)


def read(name: str) -> Element | None:
    """`int2` ... `int16`, `uint1` ... `uint16`."""
    match = re.fullmatch(r"(u?)int([1-9][0-9]?)", name)
    if match is None:
        return None
    signed, bits = not match[1], int(match[2])
    return Integer(bits, signed) if 1 + signed <= bits <= 16 else None
