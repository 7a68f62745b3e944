# SPDX-License-Identifier: BSD-3-Clause
"""Offsets: a number added to the values of a block, x ≈ code * step + offset (numerics.md, 3.8)."""

from dataclasses import dataclass
from typing import Generic

import torch
from torch import Tensor

from blockscale.core.arithmetic.bits import FLT_MAX
from blockscale.core.block import Block
from blockscale.core.blocks import Blocks
from blockscale.core.rounding import nearest_even
from blockscale.core.scale import FloatScale
from blockscale.core.scales.two_level import Inner


@dataclass(frozen=True)
class Offset(Generic[Inner]):
    """How the offset of a block is stored.

    type: a float, or a small format whose codes offsets are; their own scale is one float for each
        block of offsets
    block: which elements of the tensor share an offset; None: those that share a scale
    """

    type: "FloatScale | Inner"
    block: Block | None = None

    @property
    def inner(self) -> "Inner | None":
        """The format of the offsets, where they are quantized."""
        return None if isinstance(self.type, FloatScale) else self.type

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the stored offset: a byte where it is a code."""
        return self.type.dtype if isinstance(self.type, FloatScale) else torch.uint8

    @property
    def bits(self) -> int:
        """Stored bits of one offset."""
        return self.dtype.itemsize * 8

    def __str__(self) -> str:
        block = "" if self.block is None else f"{self.block}:"
        return f"offset({block}{self.type})"

    def store(self, offset: Tensor) -> tuple[Tensor, Tensor | None]:
        """Offsets [...] float32 -> what is stored, and the scale of their codes where they are.

        Offsets in a format of unsigned elements are at most 0: their scale is stored negative.
        """
        inner = self.inner
        if inner is None:
            assert isinstance(self.type, FloatScale)
            return self.type.store_any(offset), None
        element, block = inner.element, inner.block
        sign = 1.0 if element.signed else -1.0
        offset = offset * sign
        top = torch.full((), element.limits(False)[1], dtype=offset.dtype, device=offset.device)
        outer = inner.scale.store(Blocks(offset.abs(), block).range()[1] / top)
        steps = offset / block.expand(outer.to(torch.float32), offset.shape)
        codes = element.to_bits(element.encode(steps, nearest_even, None, False))
        return codes, outer if sign > 0 else -outer

    def value(self, stored: Tensor, outer: Tensor | None) -> Tensor:
        """The stored offset [...] and the scale of its codes -> the offset [...] float32.

        That of a code is never infinite: the scale was rounded, and infinities of both signs that
        meet would make NaN of a finite number.
        """
        inner = self.inner
        if inner is None:
            return stored.to(torch.float32)
        assert outer is not None
        codes = inner.element.decode(inner.element.from_bits(stored))
        offset = codes * inner.block.expand(outer.to(torch.float32), codes.shape)
        return offset.clamp(-FLT_MAX, FLT_MAX)
