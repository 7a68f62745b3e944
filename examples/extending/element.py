# SPDX-License-Identifier: BSD-3-Clause
"""Integers of any odd number of levels: `levels5` is -2, -1, 0, 1, 2."""

# Goes to:   blockscale/core/elements/levels.py
# Its test:  tests/core/elements/test_levels.py: every code against values that are written out by
#            hand, and rounding at every midpoint and one float32 beside it, in every rounding.
# By itself: spellings with every block and scale, packing, files, layers, training and the command
#            line. No kernel knows the family, so the reference runs, and a warning says so once.

import re
from dataclasses import dataclass

import torch
from torch import Tensor

from blockscale.core.element import Element
from blockscale.core.rounding import Round, finite

SPELLINGS = "levels3, levels5 … levels255"
EXAMPLES = ("levels3", "levels5", "levels11", "levels255")


@dataclass(frozen=True)
class Levels(Element):
    """The integers from -top to top; code c stands for c - top."""

    top: int

    @property
    def name(self) -> str:
        return f"levels{2 * self.top + 1}"

    @property
    def bits(self) -> int:
        return (2 * self.top).bit_length()

    @property
    def max(self) -> float:
        return float(self.top)

    @property
    def smallest(self) -> float:
        return 1.0

    @property
    def mbits(self) -> int:
        return self.top.bit_length() - 1

    def encode(self, y: Tensor, rounding: Round, zero_point: Tensor | None, wide: bool) -> Tensor:
        del zero_point, wide  # a format with these options has int or uint elements
        steps = torch.where(y.isnan(), 0.0, rounding(y))
        return (steps.clamp(-self.top, self.top) + self.top).to(self.code_dtype)

    def decode(self, codes: Tensor) -> Tensor:
        return codes.to(torch.float32) - self.top

    def in_range(self, y: Tensor, rounding: Round, zero_point: Tensor | None, wide: bool) -> Tensor:
        del zero_point, wide
        return y.isfinite() & (rounding(finite(y)).abs() <= self.top)


def read(name: str) -> Element | None:
    """`levels3`, `levels5` ... `levels255`."""
    count = re.fullmatch(r"levels([1-9][0-9]{0,2})", name)
    if count is None or int(count[1]) % 2 == 0 or not 3 <= int(count[1]) <= 255:
        return None
    return Levels(int(count[1]) // 2)
