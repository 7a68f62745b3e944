# SPDX-License-Identifier: BSD-3-Clause
"""IF4: four bits that are a float or an integer, as the sign of their block's scale says.

Cook et al. 2026, arXiv 2603.28765: each block takes the grid that leaves less error, and says which
in the sign bit of its scale, which no other format needs.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from blockscale.core.element import Element
from blockscale.core.elements.codebook import Codebook, table
from blockscale.core.elements.minifloat import read as read_minifloat
from blockscale.core.rounding import Round

SPELLINGS = "if4 (e2m1, or integers under negative scales)"
EXAMPLES: tuple[str, ...] = ()  # its codes mean nothing without a scale: tests of their own
_LARGEST = 7  # of the integers, which means what 6 means of e2m1


@dataclass(frozen=True)
class IntFloat(Element):
    """`if4`: under a scale above 0 e2m1, under one below 0 the integers -7 to 7 times 6/7.

    It encodes and decodes nothing by itself: `bound` knows the scales of a tensor's blocks.
    """

    name = "if4"
    bits = 4
    max = 6.0
    smallest = 0.5
    smallest_normal = 1.0
    mbits = 1
    by_sign = True
    roundings_matter = False

    @cached_property
    def floats(self) -> Element:
        """The grid of scales above 0."""
        result = read_minifloat("e2m1")
        assert result is not None
        return result

    @cached_property
    def integers(self) -> Codebook:
        """The grid of scales below 0, ascending: the float32 nearest to 6k/7 for k = -7 to 7."""
        values = tuple(_float32(self.max * k / _LARGEST) for k in range(-_LARGEST, _LARGEST + 1))
        return Codebook(f"book({','.join(f'{np.float32(value)}' for value in values)})", values)

    @property
    def unwritten(self) -> float:
        """What the code of -8 means as an integer: it is read and never written."""
        return -self.max - self.integers.table[_LARGEST + 1]

    def encode(self, y: Tensor, rounding: Round, zero_point: Tensor | None, wide: bool) -> Tensor:
        raise self._unbound(y, rounding, zero_point, wide)

    def decode(self, codes: Tensor) -> Tensor:
        raise self._unbound(codes)

    def in_range(self, y: Tensor, rounding: Round, zero_point: Tensor | None, wide: bool) -> Tensor:
        raise self._unbound(y, rounding, zero_point, wide)

    def _unbound(self, *_: object) -> ValueError:
        return ValueError(
            f"{self.name}: its codes mean floats or integers as the signs of a tensor's scales "
            "say, and there are none here: use another format, such as nvfp4, or dequantize first"
        )

    def bound(self, negative: Tensor) -> "BoundIntFloat":
        """The element of a tensor. negative: bool [...], whether the scale of each number is below
        0; y and values then are in steps of that scale, so that their signs are the others."""
        return BoundIntFloat(negative)


@dataclass(frozen=True)
class BoundIntFloat(IntFloat):
    """The same with the signs of a tensor's scales, for that tensor alone."""

    negative: Tensor | None = None

    def encode(self, y: Tensor, rounding: Round, zero_point: Tensor | None, wide: bool) -> Tensor:
        floats = self.floats.encode(y, rounding, zero_point, wide)
        places = self.integers.encode(-y, rounding, zero_point, wide).to(torch.int32) - _LARGEST
        return torch.where(self._negative, places.to(torch.uint8) & 15, floats)

    def decode(self, codes: Tensor) -> Tensor:
        ascending = self.integers.table
        values = (*ascending[_LARGEST:], self.unwritten, *ascending[:_LARGEST])  # by code
        whole = table(values, torch.float32, codes)[codes.to(torch.int32)]
        return torch.where(self._negative, -whole, self.floats.decode(codes))

    def in_range(self, y: Tensor, rounding: Round, zero_point: Tensor | None, wide: bool) -> Tensor:
        inside = self.integers.in_range(-y, rounding, zero_point, wide)
        floats = self.floats.in_range(y, rounding, zero_point, wide)
        return torch.where(self._negative, inside, floats)

    @property
    def _negative(self) -> Tensor:
        assert self.negative is not None
        return self.negative


def _float32(value: float) -> float:
    return float(np.float32(value))


def read(name: str) -> Element | None:
    """`if4`."""
    return IntFloat() if name == "if4" else None
