# SPDX-License-Identifier: BSD-3-Clause
"""A tensor cut into blocks, and what their scales are chosen from (docs/numerics.md, 3.1, 3.2)."""

from collections.abc import Sequence
from functools import cached_property

import torch
import torch.nn.functional as F
from torch import Tensor

from blockscale.core.arithmetic.means import in_units, mean_of, unit_exponent
from blockscale.core.block import WHOLE, Block, read_block


class Blocks:
    """A tensor cut into blocks: what their scales are chosen from, one number for each block.

    NaN and infinities are left out of everything but `poisoned`, which says where they are.
    """

    def __init__(self, x: Tensor, block: Block):
        """x [...] float32."""
        self.shape = block.scale_shape(x.shape)
        if block.strided and x.numel():
            x, block = x.reshape(block.flat, -1), Block("channel1", ((1, 1),), WHOLE)
        elif block.flat:
            x, block = x.reshape(-1), read_block(f"group{block.flat}")
        self._parts = block.scale_shape(x.shape)
        self._sizes = self._within(block.sizes_for(x.ndim), x)
        self._x = x
        self._empty = x.numel() == 0

    @staticmethod
    def _within(sizes: Sequence[int], x: Tensor) -> tuple[int, ...]:
        """Sizes of blocks, none larger than its dimension: what is beyond would be padding."""
        if torch.compiler.is_compiling():  # a comparison would fix the sizes of a program
            return tuple(sizes)
        pairs = zip(sizes, x.shape, strict=True)
        return tuple(min(size, max(n, 1)) if isinstance(n, int) else size for size, n in pairs)

    def _split(self, x: Tensor) -> Tensor:
        """[n...] -> [count, size, count, size, ...], padded with zeros.

        Not of bools: Inductor's C++ of a padded one does not compile (torch 2.13).
        """
        padding: list[int] = []
        for n, size in zip(reversed(x.shape), reversed(self._sizes), strict=True):
            padding += [0, -n % size if size > 1 else 0]
        if any(size > 1 for size in self._sizes):
            x = F.pad(x, padding)
        split: list[int] = []
        for n, size in zip(x.shape, self._sizes, strict=True):
            split += [1, n] if size == WHOLE else [n // size, size]
        return x.reshape(split)

    @cached_property
    def _dims(self) -> tuple[int, ...]:
        return tuple(range(1, 2 * len(self._sizes), 2))

    @cached_property
    def _finite(self) -> Tensor:
        return self._split(self._x.isfinite().to(torch.uint8)).to(torch.bool)

    @cached_property
    def _values(self) -> Tensor:
        return self._split(torch.where(self._x.isfinite(), self._x, 0.0))

    def _zeros(self) -> Tensor:
        return self._x.new_zeros(self.shape)

    def range(self, *, bare: bool = False) -> tuple[Tensor, Tensor]:
        """The smallest and largest finite value of each block, widened to hold 0.

        bare: not widened; 0 and 0 for a block without a finite value
        """
        if self._empty:
            return self._zeros(), self._zeros()
        if bare:
            low = torch.where(self._finite, self._values, torch.inf).amin(self._dims)
            high = torch.where(self._finite, self._values, -torch.inf).amax(self._dims)
            none = low > high
            low, high = low.masked_fill(none, 0.0), high.masked_fill(none, 0.0)
            low = low + 0.0  # of 0 and -0 in a block either may come out: the offset is +0
        else:
            low = self._values.amin(self._dims).clamp(max=0.0)
            high = self._values.amax(self._dims).clamp(min=0.0)
        return low.reshape(self.shape), high.reshape(self.shape)

    def poisoned(self) -> Tensor:
        """Whether each block holds a NaN or an infinity."""
        if self._empty:
            return self._zeros().to(torch.bool)
        odd = self._split((~self._x.isfinite()).to(torch.uint8))
        return odd.amax(self._dims).to(torch.bool).reshape(self.shape)

    def mean_magnitude(self, above: Tensor | None = None) -> Tensor:
        """The mean of |x| in each block, over |x| > `above` if given: one per block.

        Summed as integers, so that no order of summation changes the bits (docs/numerics.md, 3.2).
        """
        if self._empty:
            return self._zeros()
        size = self._values.abs()
        chosen = self._finite
        if above is not None:
            chosen = chosen & (size > self._per_block(above))
        largest = size.amax(self._dims, keepdim=True)
        power = unit_exponent(largest)
        total = torch.where(chosen, in_units(size, power), 0).sum(self._dims)
        count = chosen.sum(self._dims)
        return mean_of(total, count, power.reshape(total.shape)).reshape(self.shape)

    def extent(self) -> tuple[Tensor, Tensor, Tensor]:
        """As `range`, and the mean of |x| in float32, whose last bits depend on the order of sums.

        Nothing is kept for another call, so that Dynamo can trace this (no `cached_property`).
        """
        if self._empty:
            return self._zeros(), self._zeros(), self._zeros()
        finite, dims = self._x.isfinite(), tuple(range(1, 2 * len(self._sizes), 2))
        values = self._split(torch.where(finite, self._x, 0.0))
        count = self._split(finite.to(self._x.dtype)).sum(dims).clamp(min=1)
        low, high = values.amin(dims).clamp(max=0.0), values.amax(dims).clamp(min=0.0)
        mean = values.abs().sum(dims) / count
        return low.reshape(self.shape), high.reshape(self.shape), mean.reshape(self.shape)

    def _per_block(self, scale: Tensor) -> Tensor:
        """One number per block, shaped to broadcast with the split tensor."""
        return scale.reshape([part for count in self._parts for part in (count, 1)])
