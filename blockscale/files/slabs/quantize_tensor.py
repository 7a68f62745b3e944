# SPDX-License-Identifier: BSD-3-Clause
"""Quantize one tensor a slab at a time, to the bits of quantizing it whole.

Three cases, by what spans the slabs (blockscale/files/slabs/cutting.py):

    nothing         a slab of whole blocks is quantized by itself: group32, token, channel0, tiles
    a block         a first pass merges the ranges of the slabs, and two more the sums of means
                    (binary, ternary); a last one quantizes with the scales of the whole: tensor
    an outer scale  a first pass finds the largest numerators, which alone decide the outer scale;
                    a second one quantizes each slab beside it: nvfp4. Where offsets have an outer
                    scale, too, it takes the ranges of all blocks, as above. Where other tensors
                    share the outer scale, the first pass is over all of them (`top`, `share`)

Blocks over the flattened tensor that end within rows let nothing be cut: it is one slab.
"""

from collections.abc import Callable, Iterator
from math import prod
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

from blockscale.core import reference
from blockscale.core.arithmetic.sums import in_units, mean_of, unit_exponent
from blockscale.core.block import WHOLE, Block, Blocks
from blockscale.core.cuts import Sizes, block_sizes, can_be_cut
from blockscale.core.format import Format
from blockscale.core.joined_weights import outer_of
from blockscale.core.operand import quantizer
from blockscale.core.reference import QParams, Ranges
from blockscale.files.slabs import cutting
from blockscale.files.slabs.cutting import Cuts, Region, Slab
from blockscale.files.slabs.pool import Map
from blockscale.layers.saturation import not_finite, saturates
from blockscale.layers.signs import lost_signs
from blockscale.ops import primitives
from blockscale.ops.batching import within_rows

_LARGE = 4  # slabs this many times too large are not held several at a time
_STOCHASTIC = 4  # times the memory: Philox computes in int64

T = TypeVar("T")
Read = Callable[[Cuts, Slab], Tensor]  # a slab, with the rank of the shape that is cut


class Piece(NamedTuple):
    """Part of what is stored: `rows` [r, ...] from row `row` on.

    Rows are those of dimension 0, or of the first two dimensions taken as one.
    """

    part: str  # one of files.metadata.PARTS
    row: int
    rows: Tensor


class Done(NamedTuple):
    """What a slab gives: pieces, and what is to be noted of it."""

    pieces: tuple[Piece, ...]
    odd: int = 0  # NaN and infinite weights
    clipped: int = 0  # scales that their format cannot hold
    scales: int = 0
    signs: tuple[str, ...] = ()  # a note, where values below 0 are lost


class TensorQuantizer:
    """Quantizes one tensor. `notes` is complete when `pieces` is exhausted."""

    def __init__(
        self,
        read: Read,
        shape: tuple[int, ...],
        fmt: Format,
        seed: int = 0,
        elements: int | None = None,
        run: Map = map,
    ):
        """read: slabs of a tensor of `shape`; seed: of stochastic rounding; elements: of a slab."""
        fmt = within_rows(fmt, shape)
        self._read, self._fmt, self._seed, self._map = read, fmt, seed, run
        self._odd = self._clipped = self._scales = 0
        self._outer: Tensor | None = None
        self._signs: tuple[str, ...] = ()
        elements = cutting.SLAB if elements is None else elements
        if fmt.rounding == "stochastic":
            elements = max(elements // _STOCHASTIC, 1)
        self._shape = cutting.flat_shape(shape, fmt)
        if can_be_cut(fmt):
            self._sizes = block_sizes(fmt, len(self._shape))
            self._cuts = cutting.cut(self._shape, self._sizes.values(), elements)
        else:
            self._sizes = dict.fromkeys(fmt.parts, (WHOLE,) * len(shape))
            self._cuts = Cuts(shape, 0, max(shape[0] if shape else 1, 1))
        self._scale = self._sizes["scale"]
        if self._cuts.elements > _LARGE * elements:
            self._map = map  # blocks that may not be cut: one at a time

    def top(self) -> Tensor:
        """The largest numerator of the tensor, in one pass: as core.joined_weights.top_of."""
        return self._tops().amax(-2, keepdim=True)

    def share(self, top: Tensor) -> None:
        """Take the outer scale of all whose largest numerator this is."""
        self._outer = outer_of(top, self._fmt, self._shape)

    def pieces(self) -> Iterator[Piece]:
        """Codes and scales, slab by slab; each part's rows come in order."""
        for done in self._passes():
            self._odd += done.odd
            self._clipped += done.clipped
            self._scales += done.scales
            self._signs = self._signs or done.signs
            yield from done.pieces

    @property
    def notes(self) -> tuple[str, ...]:
        """What a user should know about this tensor in this format."""
        notes = []
        if self._odd:
            notes.append(f"{self._odd} of {prod(self._shape)} weights are NaN or infinite")
        if self._clipped:
            which = f"{self._clipped} of {self._scales} scales"
            notes.append(f"{which} are outside the range of {self._fmt.scale}")
        return (*notes, *self._signs)

    def _passes(self) -> Iterator[Done]:
        cuts = self._cuts
        spans = {part for part, sizes in self._sizes.items() if cuts.spans(sizes)}
        if spans and ("scale" in spans or "offset_outer" in spans or cuts.dim):
            ranges = self._all_ranges()
            qparams, done = self._choose_all(ranges)
            self._settle(ranges, qparams)
            yield done._replace(pieces=tuple(self._scale_pieces(qparams, cuts.slabs[0])))
            yield from self._map(lambda slab: self._with_scale(slab, qparams), cuts.slabs)
        else:
            if spans and self._outer is None:
                self._outer = reference.outer_of(self._tops(), self._fmt)
            yield from self._map(self._alone, cuts.slabs)

    def _alone(self, slab: Slab) -> Done:
        """A slab that shares nothing with the others but an outer scale."""
        x = self._read(self._cuts, slab)
        outer = None if self._outer is None else self._outer[self._outers(slab)]
        ranges = reference.ranges(x, self._fmt)
        qparams, done = self._choose(ranges, outer)
        qparams = reference.settled(x, ranges, qparams, self._fmt)
        pieces = (*self._scale_pieces(qparams, slab), self._codes(x, slab, qparams))
        return done._replace(pieces=pieces, odd=not_finite(x))

    def _settle(self, ranges: Ranges, qparams: QParams) -> None:
        """Choose again, in place, between two scales of each block of a format that compares them.

        Raises ValueError where slabs cut blocks, whose error no slab knows.
        """
        if not self._fmt.compares:
            return
        if self._cuts.spans(self._scale):
            raise ValueError(
                f"{self._fmt}: blocks {self._fmt.block} of a weight {list(self._shape)} do not lie "
                f"in slabs of rows, as files are quantized: use smaller blocks, or quantize the "
                "model in memory"
            )
        for slab in self._cuts.slabs:
            at, own = self._cuts.region(slab, self._scale), self._outers(slab)
            parts = QParams(qparams.scale[at], qparams.outer[own])  # type: ignore[index]
            some = Ranges(*(part[at] for part in ranges))
            x = self._read(self._cuts, slab)
            qparams.scale[at] = reference.settled(x, some, parts, self._fmt).scale

    def _with_scale(self, slab: Slab, qparams: QParams) -> Done:
        """A slab that takes its part of the scales of the whole tensor."""
        x = self._read(self._cuts, slab)
        regions = {part: self._cuts.region(slab, sizes) for part, sizes in self._sizes.items()}
        own = QParams(**{part: getattr(qparams, part)[at] for part, at in regions.items()})
        return Done((self._codes(x, slab, own),), odd=not_finite(x))

    def _tops(self) -> Tensor:
        """The largest numerator for each outer scale, which it alone decides [its shape]."""
        tops = torch.zeros(self._fmt.stored(self._shape)["outer"][1])

        def own(slab: Slab) -> Tensor:
            return reference.tops(
                reference.ranges(self._read(self._cuts, slab), self._fmt), self._fmt
            )

        slabs = self._cuts.slabs
        for slab, found in zip(slabs, self._map(own, slabs), strict=True):
            at = self._outers(slab)
            tops[at] = torch.maximum(tops[at], found)
        return tops

    def _outers(self, slab: Slab) -> Region:
        """The outer scales that a slab has a part of."""
        return self._cuts.region(slab, self._sizes["outer"])

    @property
    def _bare(self) -> bool:
        """Whether ranges need not hold 0, so that a block without finite values has none."""
        return self._fmt.offset is not None

    def _all_ranges(self) -> Ranges:
        """The ranges of the whole tensor."""
        shape = self._fmt.block.scale_shape(self._shape)
        end = torch.inf if self._bare else 0.0
        low, high = torch.full(shape, end), torch.full(shape, -end)
        poisoned = torch.zeros(shape, dtype=torch.bool)
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
        """`work` of every slab, as float32, and the region of its scales."""
        regions = [self._cuts.region(slab, self._scale) for slab in self._cuts.slabs]
        pairs = zip(self._cuts.slabs, regions, strict=True)
        results = self._map(
            lambda pair: work(reference.widen(self._read(self._cuts, pair[0])), pair[1]), pairs
        )
        return zip(regions, results, strict=True)

    def _own_ranges(self, x: Tensor, region: Region) -> Ranges:
        """Of one slab; where blocks span slabs, of its values, even if a scale will be a mean."""
        del region
        if not self._cuts.spans(self._scale):
            return reference.ranges(x, self._fmt)
        found = reference.extremes(Blocks(x, self._fmt.block), self._fmt)
        if not self._bare:
            return found
        some = Blocks(x.isfinite().to(x.dtype), self._fmt.block).range()[1] > 0
        low = torch.where(some, found.low, torch.inf)
        return Ranges(low, torch.where(some, found.high, -torch.inf), found.poisoned)

    def _choose_all(self, ranges: Ranges) -> tuple[QParams, Done]:
        """`_choose` for all, a matrix at a time where a stack's share nothing: it needs memory."""
        if len(self._shape) < 3 or any(sizes[0] != 1 for sizes in self._sizes.values()):
            return self._choose(ranges, self._outer)
        outers = [None] * len(ranges.low) if self._outer is None else self._outer.split(1)
        matrices = zip(*(part.split(1) for part in ranges), strict=True)
        each = [
            self._choose(Ranges(*one), outer) for one, outer in zip(matrices, outers, strict=True)
        ]
        clipped, scales = (sum(getattr(done, n) for _, done in each) for n in ("clipped", "scales"))
        signs = next((done.signs for _, done in each if done.signs), ())
        return cutting.joined(q for q, _ in each), Done((), 0, clipped, scales, signs)

    def _choose(self, ranges: Ranges, outer: Tensor | None) -> tuple[QParams, Done]:
        """The scales of blocks, beside an outer one if it is given, and how many do not fit."""
        clipped = saturates(ranges.low, ranges.high, self._fmt, outer)
        qparams = reference.qparams_from_range(*ranges, self._fmt, outer)
        signs = tuple(lost_signs("weight", ranges.low, self._fmt))
        return qparams, Done((), clipped=int(clipped.sum()), scales=clipped.numel(), signs=signs)

    def _scale_pieces(self, qparams: QParams, slab: Slab) -> Iterator[Piece]:
        """The scales of a slab; what slabs share, as an outer scale, comes with the first."""
        for part, sizes in self._sizes.items():
            if self._row(slab, self._scale) == 0 or not self._cuts.spans(sizes):
                yield Piece(part, self._row(slab, sizes), self._flat(getattr(qparams, part)))

    def _row(self, slab: Slab, sizes: Sizes) -> int:
        """Where a slab's part of something begins that has one entry for each block of `sizes`."""
        size = sizes[self._cuts.dim] if self._shape else WHOLE
        if size == WHOLE:  # shared by all slabs of a matrix, and written with the first of them
            return slab.matrix
        return slab.matrix * -(-self._cuts.count // size) + slab.start // size

    def _codes(self, x: Tensor, slab: Slab, qparams: QParams) -> Piece:
        row = slab.matrix * self._cuts.count + slab.start
        seed = torch.tensor([self._seed, row * prod(self._shape[self._cuts.dim + 1 :])])
        packed = primitives.quantize(x, quantizer(qparams, self._fmt, seed))
        return Piece("codes", row, self._flat(packed))

    def _flat(self, part: Tensor) -> Tensor:
        """Part of what is stored, with the dimensions up to the cut one as one."""
        return part.flatten(0, 1) if self._cuts.dim else part


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
        chosen = x.isfinite()
        size = torch.where(chosen, x, 0.0).abs()
        if above is not None:
            chosen = chosen & (size > above)
        units = torch.where(chosen, in_units(size, self._power[region]), 0)
        return PartialSums(
            units.sum(self._spanned, keepdim=True), chosen.sum(self._spanned, keepdim=True)
        )
