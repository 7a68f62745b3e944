# SPDX-License-Identifier: BSD-3-Clause
"""The first passes over a tensor: what is chosen from all of its slabs.

Ranges and largest numerators merge; means are sums of integers, so how a block is cut changes no
bit of them (docs/numerics.md, 3.2).
"""

from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

from blockscale.core import reference
from blockscale.core.arithmetic.sums import in_units, mean_of, unit_exponent
from blockscale.core.block import WHOLE, Block, Blocks
from blockscale.core.cuts import Sizes
from blockscale.core.format import Format
from blockscale.core.reference import Ranges
from blockscale.files.slabs import cutting
from blockscale.files.slabs.cutting import Cuts, Region, Slab
from blockscale.files.slabs.pool import Map
from blockscale.layers.saturation import ends, tops_of

T = TypeVar("T")
Read = Callable[[Cuts, Slab], Tensor]  # a slab, with the rank of the shape that is cut


class FirstPass:
    """What the slabs of one tensor say together.

    finite: whether a pass has seen every number, and each is finite
    """

    def __init__(
        self, read: Read, cuts: Cuts, sizes: Mapping[str, Sizes], fmt: Format, run: Map = map
    ):
        """sizes: of what shares one entry of each part of `fmt`; run: slabs, several at a time."""
        self._read, self._cuts, self._sizes, self._fmt, self._map = read, cuts, sizes, fmt, run
        self._scale, self._shape = sizes["scale"], cuts.shape
        self.finite = False

    def tops(self) -> Tensor:
        """The largest numerator for each outer scale, which it alone decides [its shape]."""
        tops = torch.zeros(self._fmt.stored(self._shape)["outer"][1])
        finite = []

        def own(slab: Slab) -> Tensor:
            x = self._read(self._cuts, slab)
            finite.append((both := ends(x)) is not None)
            return tops_of(x, self._fmt, both)

        slabs = self._cuts.slabs
        for slab, found in zip(slabs, self._map(own, slabs), strict=True):
            at = self._cuts.region(slab, self._sizes["outer"])
            tops[at] = torch.maximum(tops[at], found)
        self.finite = all(finite)
        return tops

    @property
    def _bare(self) -> bool:
        """Whether ranges need not hold 0, so that a block without finite values has none."""
        return self._fmt.offset is not None

    def ranges(self) -> Ranges:
        """The ranges of the whole tensor."""
        shape = self._fmt.block.scale_shape(self._shape)
        end = torch.inf if self._bare else 0.0
        low, high = torch.full(shape, end), torch.full(shape, -end)
        poisoned = torch.zeros(shape, dtype=torch.bool)
        self.finite = True  # until a slab is seen that is not plain
        for region, own in self._each(self._own_ranges):
            low[region] = torch.minimum(low[region], own.low)
            high[region] = torch.maximum(high[region], own.high)
            poisoned[region] |= own.poisoned
        none = low > high
        low, high = low.masked_fill(none, 0.0), high.masked_fill(none, 0.0)
        if self._cuts.spans(self._scale):
            blocks = StreamedBlocks(torch.maximum(-low, high), self._fmt.block, self._each)
            return reference.with_means(Ranges(low, high, poisoned), blocks, self._fmt)
        return Ranges(low, high, poisoned)

    def _each(self, work: Callable[[Tensor, Region], T]) -> Iterator[tuple[Region, T]]:
        """`work` of every slab and the region of its scales."""
        regions = [self._cuts.region(slab, self._scale) for slab in self._cuts.slabs]
        pairs = zip(self._cuts.slabs, regions, strict=True)
        results = self._map(lambda pair: work(self._read(self._cuts, pair[0]), pair[1]), pairs)
        return zip(regions, results, strict=True)

    def _own_ranges(self, x: Tensor, region: Region) -> Ranges:
        """Of one slab; where blocks span slabs, of its values, even if a scale will be a mean."""
        del region
        spans = self._cuts.spans(self._scale)
        pairs = zip(self._scale, x.shape, strict=True)
        if spans and not self._bare and all(size == WHOLE or n == 1 for size, n in pairs):
            return self._one_range(x)
        self.finite = False
        if not spans:
            return reference.ranges(x, self._fmt)
        found = self._extremes(x)
        if not self._bare:
            return found
        some = Blocks(x.isfinite().float(), self._fmt.block).range()[1] > 0
        low = torch.where(some, found.low, torch.inf)
        return Ranges(low, torch.where(some, found.high, -torch.inf), found.poisoned)

    def _extremes(self, x: Tensor) -> Ranges:
        return reference.extremes(Blocks(reference.widen(x), self._fmt.block), self._fmt)

    def _one_range(self, x: Tensor) -> Ranges:
        """Of a slab that is part of one block."""
        if (both := ends(x)) is not None:
            low, high = (torch.full((1,) * x.ndim, end) for end in both)
            none = torch.zeros_like(low, dtype=torch.bool)
            return Ranges(low.clamp(max=0.0), high.clamp(min=0.0), none)
        self.finite = False
        dim = self._cuts.dim
        rows = max(cutting.SLAB * x.shape[dim] // max(x.numel(), 1), 1) if x.ndim else 1
        each = map(self._extremes, x.split(rows, dim) if x.ndim else [x])
        low, high, poisoned = (torch.stack(parts) for parts in zip(*each, strict=True))
        return Ranges(low.amin(0), high.amax(0), poisoned.any(0))


# Blocks that span slabs: the means that `Blocks.mean_magnitude` gives, summed slab by slab.
#
# The sums are of integers (docs/numerics.md, 3.2), so how a block is cut changes no bit of them.


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
        x = reference.widen(x)
        chosen = x.isfinite()
        size = torch.where(chosen, x, 0.0).abs()
        if above is not None:
            chosen = chosen & (size > above)
        units = torch.where(chosen, in_units(size, self._power[region]), 0)
        return PartialSums(
            units.sum(self._spanned, keepdim=True), chosen.sum(self._spanned, keepdim=True)
        )
