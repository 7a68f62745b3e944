"""Blocks that span slabs: the means that `Blocks.mean_magnitude` gives, summed slab by slab.

The sums are of integers (docs/numerics.md, 3.2), so how a block is cut changes no bit of them.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from blockscale.core.arithmetic.means import in_units, mean_of, unit_exponent
from blockscale.core.block import WHOLE, Block
from blockscale.core.blocks import Blocks
from blockscale.files.slabs.cutting import Region


class PartialSums(NamedTuple):
    """Of one slab, one entry for each block that it has a part of: int64."""

    total: Tensor  # magnitudes in units (core.means)
    number: Tensor  # how many they are


OfSlab = Callable[[Tensor, Region], PartialSums]
Each = Callable[[OfSlab], Iterator[tuple[Region, PartialSums]]]


class StreamedBlocks(Blocks):
    """Stands in for the Blocks of a whole tensor, to an element that asks for means."""

    def __init__(self, largest: Tensor, block: Block, each: Each):
        """largest: the largest finite magnitude of each block [scale's shape].

        each: calls a function with every slab and the region of its scales, gives both back.
        """
        self.shape = tuple(largest.shape)
        self._each = each
        self._power = unit_exponent(largest)
        sizes = block.sizes_for(largest.ndim)
        self._spanned = tuple(dim for dim, size in enumerate(sizes) if size == WHOLE)

    def mean_magnitude(self, above: Tensor | None = None) -> Tensor:
        """The mean of |x| in each block, over |x| > `above` if given: one per block."""
        total = torch.zeros(self.shape, dtype=torch.int64)
        count = torch.zeros_like(total)

        def sums(x: Tensor, region: Region) -> PartialSums:
            return self._sums(x, region, None if above is None else above[region])

        for region, (more, number) in self._each(sums):
            total[region] += more
            count[region] += number
        return mean_of(total, count, self._power)

    def _sums(self, x: Tensor, region: Region, above: Tensor | None) -> PartialSums:
        """The magnitudes of one slab that count, in whole units, and how many there are."""
        chosen = x.isfinite()
        size = torch.where(chosen, x, 0.0).abs()
        if above is not None:
            chosen = chosen & (size > above)
        units = torch.where(chosen, in_units(size, self._power[region]), 0)
        return PartialSums(
            units.sum(self._spanned, keepdim=True), chosen.sum(self._spanned, keepdim=True)
        )
