# SPDX-License-Identifier: BSD-3-Clause
"""A family of elements that no kernel knows: 16 numbers that no rule computes, four bits each.

Its codes look like those of int4 and e2m1, so that a kernel that takes an unknown family for one of
its own computes something, and something wrong.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import SimpleNamespace

import torch
from torch import Tensor

from blockscale.core import elements
from blockscale.core.element import Element
from blockscale.core.elements.integer import Integer
from blockscale.core.rounding import Round

VALUES = [
    -1.0,
    -0.75,
    -0.5,
    -0.4,
    -0.3,
    -0.2,
    -0.1,
    0.0,
    0.05,
    0.15,
    0.25,
    0.35,
    0.45,
    0.6,
    0.8,
    1.0,
]


@dataclass(frozen=True)
class Codebook(Element):
    """The nearest of VALUES."""

    name = "made4"
    bits = 4
    max = 1.0
    smallest = 0.05
    roundings_matter = False

    def encode(self, y: Tensor, rounding: Round, zero_point: Tensor | None, wide: bool) -> Tensor:
        distance = (y.nan_to_num().unsqueeze(-1) - torch.tensor(VALUES)).abs()
        return distance.argmin(-1).to(torch.uint8)

    def decode(self, codes: Tensor) -> Tensor:
        return torch.tensor(VALUES)[codes.to(torch.int64)]

    def in_range(self, y: Tensor, rounding: Round, zero_point: Tensor | None, wide: bool) -> Tensor:
        return y.abs() <= 1


@dataclass(frozen=True)
class Doubled(Integer):
    """An int4 whose values are even: a subclass of what kernels know, which they do not know."""

    bits: int = 4
    signed: bool = True

    @property
    def name(self) -> str:
        return "twice4" if self.signed else "utwice4"

    def decode(self, codes: Tensor) -> Tensor:
        return 2 * super().decode(codes)


UNKNOWN: dict[str, Element] = {
    "made4": Codebook(),
    "twice4": Doubled(),
    "utwice4": Doubled(signed=False),  # may be a scale's element, too
}


@contextmanager
def registered() -> Iterator[None]:
    """Make the elements known to `parse`, as a file in core/elements/ would."""
    family = SimpleNamespace(read=UNKNOWN.get, SPELLINGS="made4, twice4, utwice4")
    elements.FAMILIES.append(family)
    try:
        yield
    finally:
        elements.FAMILIES.remove(family)
