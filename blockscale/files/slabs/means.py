"""Means of blocks that span slabs: what `Blocks.mean_magnitude` gives, summed slab by slab.

The sums are of integers (docs/numerics.md, 3.2), so how a block is cut changes no bit of them.
"""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from blockscale.core.bits import exponent, pow2
from blockscale.core.block import WHOLE, Block, Blocks
from blockscale.files.slabs.slabs import Region

Sums = tuple[Tensor, Tensor]
Each = Callable[[Callable[[Tensor, Region], Sums]], Iterator[tuple[Region, Sums]]]


class StreamedBlocks(Blocks):
    """Stands in for the Blocks of a whole tensor, to an element that asks for means."""

    def __init__(self, largest: Tensor, block: Block, each: Each):
        """largest: the largest finite magnitude of each block [scale's shape].

        each: calls a function with every slab and the region of its scales, gives both back.
        """
        self.shape = tuple(largest.shape)
        self._each = each
        self._power = exponent(torch.where(largest > 0, largest, 1.0)).clamp(min=-126)
        sizes = block.sizes_for(largest.ndim)
        self._spanned = tuple(dim for dim, size in enumerate(sizes) if size == WHOLE)

    def mean_magnitude(self, above: Tensor | None = None) -> Tensor:
        """The mean of |x| in each block, over |x| > `above` if given: one per block."""
        total = torch.zeros(self.shape, dtype=torch.int64)
        count = torch.zeros_like(total)

        def sums(x: Tensor, region: Region) -> Sums:
            return self._sums(x, region, None if above is None else above[region])

        for region, (more, number) in self._each(sums):
            total[region] += more
            count[region] += number
        mean = total.to(torch.float32) / count.clamp(min=1).to(torch.float32)
        return mean * 2.0**-30 * pow2(self._power)

    def _sums(self, x: Tensor, region: Region, above: Tensor | None) -> Sums:
        """The integers of docs/numerics.md, 3.2, of one slab, and how many there are."""
        chosen = x.isfinite()
        size = torch.where(chosen, x, 0.0).abs()
        if above is not None:
            chosen = chosen & (size > above)
        shift = 30 - self._power[region]  # two factors: 2^156 is not a float32
        half = shift.div(2, rounding_mode="floor")
        whole = (size * pow2(half) * pow2(shift - half)).to(torch.int64)
        total = torch.where(chosen, whole, 0).sum(self._spanned, keepdim=True)
        return total, chosen.sum(self._spanned, keepdim=True)
