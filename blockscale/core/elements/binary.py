# SPDX-License-Identifier: BSD-3-Clause
"""Binary numbers -1, +1 (Rastegari et al.: "XNOR-Net", ECCV 2016)."""

from dataclasses import dataclass

import torch
from torch import Tensor

from blockscale.core.block import Blocks
from blockscale.core.element import Element, ElementNumbers
from blockscale.core.rounding import Round

SPELLINGS = "binary"
EXAMPLES = ("binary",)


@dataclass(frozen=True)
class Binary(Element):
    """The sign; the scale is the mean magnitude (XNOR-Net, section 3.1)."""

    @property
    def name(self) -> str:
        return "binary"

    @property
    def bits(self) -> int:
        return 1

    @property
    def max(self) -> float:
        return 1.0

    @property
    def smallest(self) -> float:
        return 1.0

    @property
    def grain(self) -> int | None:
        return 0

    @property
    def code_dtype(self) -> torch.dtype:
        return torch.int8

    @property
    def roundings_matter(self) -> bool:
        return False

    def encode(self, y: Tensor, rounding: Round, zero_point: Tensor | None, wide: bool) -> Tensor:
        del rounding, zero_point, wide
        return 1 - 2 * (y < 0).to(torch.int8)

    def decode(self, codes: Tensor) -> Tensor:
        return codes.to(torch.float32)

    def in_range(self, y: Tensor, rounding: Round, zero_point: Tensor | None, wide: bool) -> Tensor:
        del rounding, zero_point, wide
        return y.abs() <= 1  # BinaryNet's clipped gradient (Hubara et al., 2016)

    @property
    def uses_range(self) -> bool:
        return False

    def magnitude(self, blocks: Blocks) -> Tensor:
        return blocks.mean_magnitude()

    def numbers(self, wide: bool) -> ElementNumbers:
        del wide
        return ElementNumbers("binary", self.bits, self.signed, -1.0, 1.0, 1.0, "mean")

    def to_bits(self, codes: Tensor) -> Tensor:
        return (codes > 0).to(torch.uint8)

    def from_bits(self, patterns: Tensor) -> Tensor:
        return 2 * patterns.to(torch.int8) - 1


def read(name: str) -> Element | None:
    """`binary`."""
    return Binary() if name == "binary" else None
