# SPDX-License-Identifier: BSD-3-Clause
"""The first passes over a tensor: what is chosen from all of its slabs, whose ranges, largest
numerators and means merge as those of several processes do (core.shared_scales)."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TypeVar

import torch
from torch import Tensor

from blockscale.core import reference
from blockscale.core.block import WHOLE, Blocks
from blockscale.core.cuts import Sizes
from blockscale.core.format import Format
from blockscale.core.reference import Ranges
from blockscale.core.shared_scales import (
    Counted,
    PartialRanges,
    Region,
    SummedBlocks,
    part_ranges,
)
from blockscale.files.slabs import cutting
from blockscale.files.slabs.cutting import Cuts, Slab
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
        for slab, top in zip(slabs, self._map(own, slabs), strict=True):
            at = self._cuts.region(slab, self._sizes["outer"])
            tops[at] = torch.maximum(tops[at], top)
        self.finite = all(finite)
        return tops

    def ranges(self) -> Ranges:
        """The ranges of the whole tensor."""
        every = PartialRanges(self._shape, self._fmt)
        self.finite = True  # until a slab is seen that is not plain
        for region, own in self._each(self._own_ranges):
            every.add(region, own)
        ranges = every.whole()
        if self._cuts.spans(self._scale):
            return reference.with_means(ranges, SummedBlocks(ranges, self._magnitudes), self._fmt)
        return ranges

    def _magnitudes(self, power: Tensor, above: Tensor | None) -> Iterable[Counted]:
        """What each slab has of the magnitudes whose mean is asked for."""

        def own(x: Tensor, region: Region) -> tuple[Tensor, Tensor]:
            limit = None if above is None else above[region]
            return Blocks(reference.widen(x), self._fmt.block).magnitudes(power[region], limit)

        return self._each(own)

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
        whole = all(size == WHOLE or n == 1 for size, n in pairs)
        if spans and whole and self._fmt.offset is None:
            return self._one_range(x)
        self.finite = False
        return self._extremes(x) if spans else reference.ranges(x, self._fmt)

    def _extremes(self, x: Tensor) -> Ranges:
        return part_ranges(reference.widen(x), self._fmt.block, self._fmt)

    def _one_range(self, x: Tensor) -> Ranges:
        """Of a slab that is part of one block, to whose range PartialRanges adds 0."""
        if (both := ends(x)) is not None:
            low, high = (torch.full((1,) * x.ndim, end) for end in both)
            none = torch.zeros_like(low, dtype=torch.bool)
            return Ranges(low, high, none)
        self.finite = False
        dim = self._cuts.dim
        rows = max(cutting.SLAB * x.shape[dim] // max(x.numel(), 1), 1) if x.ndim else 1
        each = map(self._extremes, x.split(rows, dim) if x.ndim else [x])
        low, high, poisoned = (torch.stack(parts) for parts in zip(*each, strict=True))
        return Ranges(low.amin(0), high.amax(0), poisoned.any(0))
