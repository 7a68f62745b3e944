# SPDX-License-Identifier: BSD-3-Clause
"""Ternary numbers -1, 0, +1 (Li, Zhang, Liu: "Ternary weight networks", 2016)."""

from dataclasses import dataclass, replace

from torch import Tensor

from blockscale.core.block import Blocks
from blockscale.core.element import Element, ElementNumbers
from blockscale.core.elements.integer import Integer

SPELLINGS = "ternary"
EXAMPLES = ("ternary",)
_THRESHOLD = 0.699999988079071044921875  # the float32 nearest to 0.7 (TWN, equation 6)


@dataclass(frozen=True)
class Ternary(Integer):
    """A two-bit integer whose scale is the mean of the weights that do not become 0."""

    bits: int = 2

    @property
    def name(self) -> str:
        return "ternary"

    @property
    def fraction_bits(self) -> int:
        return 0

    @property
    def integer(self) -> bool:
        """False: its scale is a mean and not a range, which the options of integers are about."""
        return False

    def limits(self, wide: bool) -> tuple[float, float]:
        """-1 and 1, whatever the options of a format say."""
        del wide
        return -1.0, 1.0

    @property
    def uses_range(self) -> bool:
        return False

    def magnitude(self, blocks: Blocks) -> Tensor:
        threshold = blocks.mean_magnitude() * _THRESHOLD
        return blocks.mean_magnitude(above=threshold)

    def numbers(self, wide: bool) -> ElementNumbers:
        return replace(super().numbers(wide), statistic="mean_above")


def read(name: str) -> Element | None:
    """`ternary`."""
    return Ternary() if name == "ternary" else None
