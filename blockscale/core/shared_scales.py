# SPDX-License-Identifier: BSD-3-Clause
"""Scales of a tensor that nobody sees whole, with the bits of the whole: each process has a share
of it, or it is read slab by slab.

Ranges of blocks merge by minimum and maximum, and means are sums of integers (docs/numerics.md,
3.2): how the tensor was cut, and in which order the parts merged, changes no bit.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from blockscale.core import reference
from blockscale.core.arithmetic.sums import mean_of, unit_exponent
from blockscale.core.block import WHOLE, Block, Blocks, read_block
from blockscale.core.cuts import Share, line_of, parts_of, refine
from blockscale.core.format import Format
from blockscale.core.reference import QParams, Ranges

Merge = Callable[[Tensor, str], None]  # in place, over all shares: "max" or "sum"
Region = tuple[slice, ...]  # the first dimensions of a tensor that has one entry for each block


def part_ranges(x: Tensor, block: Block, fmt: Format) -> Ranges:
    """The ranges of a part x [...] float32 of a tensor, each of the block's values in this part.

    Where ranges need not hold 0, the range of a block without a finite number here is empty: from
    infinity to -infinity. Means are not taken (`SummedBlocks`).
    """
    ranges = reference.extremes(Blocks(x, block), fmt)
    if fmt.offset is None:
        return ranges
    some = Blocks(x.isfinite().to(x.dtype), block).range()[1] > 0
    low = torch.where(some, ranges.low, torch.inf)
    return Ranges(low, torch.where(some, ranges.high, -torch.inf), ranges.poisoned)


class PartialRanges:
    """The ranges of all blocks of a tensor, to which one part after the other adds its own.

    shape: of the tensor
    """

    def __init__(self, shape: Sequence[int], fmt: Format, device: torch.device | None = None):
        blocks = fmt.block.scale_shape(shape)
        end = torch.inf if fmt.offset is not None else 0.0
        self._low = torch.full(blocks, end, device=device)
        self._high = -self._low
        self._poisoned = torch.zeros(blocks, device=device, dtype=torch.bool)

    def add(self, region: Region, part: Ranges) -> None:
        """region: the part's blocks among those of the tensor."""
        own = (self._low[region], self._high[region], self._poisoned[region])
        low, high, poisoned = (each.reshape(own[0].shape) for each in part)
        self._low[region] = torch.minimum(own[0], low)
        self._high[region] = torch.maximum(own[1], high)
        self._poisoned[region] = own[2] | poisoned

    def whole(self, merge: Merge | None = None) -> Ranges:
        """Of all parts; merge: with those that other processes have."""
        low, high, poisoned = self._low, self._high, self._poisoned
        if merge is not None:
            merge(ends := torch.stack([-low, high, poisoned.to(low.dtype)]), "max")
            low, high, poisoned = -ends[0], ends[1], ends[2] > 0
        none = low > high
        return Ranges(low.masked_fill(none, 0.0), high.masked_fill(none, 0.0), poisoned)


Counted = tuple[Region, tuple[Tensor, Tensor]]  # of a part: where, and as `Blocks.magnitudes`
Parts = Callable[[Tensor, Tensor | None], Iterable[Counted]]


class SummedBlocks(Blocks):
    """Stands in for the Blocks of a whole tensor, to an element that asks for means.

    parts: (power, above), both of the whole tensor as in `Blocks.magnitudes`, or above None ->
        what each part counts
    merge: with what other processes count
    """

    def __init__(self, ranges: Ranges, parts: Parts, merge: Merge | None = None):
        self.shape = tuple(ranges.low.shape)
        self._count, self._merge = parts, merge
        self._power = unit_exponent(torch.maximum(-ranges.low, ranges.high))

    def mean_magnitude(self, above: Tensor | None = None) -> Tensor:
        """The mean of |x| in each block, over |x| > `above` if given: one per block."""
        total = torch.zeros(self.shape, dtype=torch.int64, device=self._power.device)
        count = torch.zeros_like(total)
        for region, (more, number) in self._count(self._power, above):
            total[region] += more.reshape(total[region].shape)
            count[region] += number.reshape(total[region].shape)
        if self._merge is not None:
            self._merge(total, "sum")
            self._merge(count, "sum")
        return mean_of(total, count, self._power)


# Shares of several processes.


def choose(x: Tensor, fmt: Format, own: Share, merge: Merge) -> tuple[QParams, Format]:
    """A share of a float tensor -> its scales and their format: those that `cut` takes out of the
    whole tensor once that is quantized, to the bit.

    x: of the shape `own.own_shape`
    merge: makes a tensor the largest or the sum of those of all shares, in place. All shares
        call it in the same order with tensors of equal shapes, and none where no scale is shared

    Raises ValueError as `placements`, for scales that must be supplied, and for what is not chosen
    over cuts: learned tables, and scales that compare errors (`four_six`) over blocks that are cut.
    """
    if tuple(x.shape) != own.own_shape:
        raise ValueError(f"expected a part of shape {own.own_shape}, found {tuple(x.shape)}")
    sizes, several = line_of(fmt, own.shape, own.dim).sizes, spans(fmt, own)
    _check_choosable(fmt, own, "scale" in several)
    if not several:
        if own.start == own.stop:
            return _nothing(x, fmt, own), fmt
        return reference.choose_qparams(x, fmt), fmt
    if several == {"outer"} and sizes["outer"] == WHOLE:
        return _beside_outer(x, fmt, own, merge), fmt
    whole = reference.qparams_from_range(*_merged_ranges(x, fmt, own, merge), fmt)
    qparams, fine = parts_of(whole, fmt, own), refine(fmt, own)
    if fmt != fmt.plain and own.start < own.stop:
        qparams = reference.settle(x, reference.ranges(x, fine), qparams, fine)
    return qparams, fine


def spans(fmt: Format, own: Share) -> set[str]:
    """The parts of a format of which several shares have an entry in common, wherever it is cut."""
    sizes = line_of(fmt, own.shape, own.dim).sizes
    return {part for part, size in sizes.items() if _goes_through(own, fmt, size)}


def _goes_through(own: Share, fmt: Format, size: int) -> bool:
    """Whether any of the cuts goes through what shares an entry of so many elements."""
    n, each = own.shape[own.dim], line_of(fmt, own.shape, own.dim).each
    inner = [place * each for place in own.places[1:-1] if 0 < place < n]
    return bool(inner) if size == WHOLE else any(place % size for place in inner)


def _check_choosable(fmt: Format, own: Share, cut_inside: bool) -> None:
    where = f"{own.shape} cut along dimension {own.dim} at {own.places[1:-1]}"
    if fmt.element.learned and own.own_shape != own.shape:
        raise ValueError(
            f"{fmt}: {fmt.element.name} is one table that a whole tensor teaches, and this one is "
            f"{where}: quantize it before it is cut, or use a fixed table, such as 'nf4'"
        )
    if fmt != fmt.plain and cut_inside:
        raise ValueError(
            f"{fmt}: the errors of a whole block decide which of two scales it gets, and blocks of "
            f"{where} are nowhere whole: cut between blocks, or use {fmt.plain}"
        )


def _nothing(x: Tensor, fmt: Format, own: Share) -> QParams:
    """The parts of a share that holds no element and shares no scale."""
    stored = fmt.stored(own.own_shape)
    return QParams(
        **{
            part: torch.zeros(of, dtype=dtype, device=x.device)
            for part, (dtype, of) in stored.items()
        }
    )


def _beside_outer(x: Tensor, fmt: Format, own: Share, merge: Merge) -> QParams:
    """Of blocks that are whole, under outer scales that all shares have in common."""
    outers = fmt.stored(own.shape)["outer"][1]
    if own.start == own.stop:
        merge(tops := torch.zeros(outers, device=x.device), "max")
        return _nothing(x, fmt, own)._replace(outer=reference.outer_of(tops, fmt))
    ranges = reference.ranges(x, fmt)
    merge(tops := reference.tops(ranges, fmt).clone(), "max")
    qparams = reference.qparams_from_range(*ranges, fmt, reference.outer_of(tops, fmt))
    return reference.settle(x, ranges, qparams, fmt)


class _Stretch(NamedTuple):
    """Some elements of a share that no block of the whole tensor holds with others of it.

    region: its blocks among those of the whole tensor
    """

    x: Tensor
    block: Block
    region: Region


def _stretches(x: Tensor, fmt: Format, own: Share) -> list[_Stretch]:
    """A share up to the first place between blocks, and from there: the blocks of each are those of
    the whole tensor as far as the share has them."""
    line = line_of(fmt, own.shape, own.dim)
    x, axis, block, size = reference.widen(x), own.dim, fmt.block, line.sizes["scale"]
    start, length = own.start * line.each, (own.stop - own.start) * line.each
    if block.flat:
        x, axis, block = x.reshape(-1), 0, read_block(f"group{block.flat}")
    head = 0 if size == WHOLE else min(-start % size, length)
    pieces = []
    for first, stop in ((0, head), (head, length)):
        if first < stop:
            at = 0 if size == WHOLE else (start + first) // size
            count = 1 if size == WHOLE else -(-(start + stop) // size) - at
            region = (slice(None),) * line.axis + (slice(at, at + count),)
            pieces.append(_Stretch(x.narrow(axis, first, stop - first), block, region))
    return pieces


def _merged_ranges(x: Tensor, fmt: Format, own: Share, merge: Merge) -> Ranges:
    """The ranges of all blocks of the whole tensor, from the shares of all."""
    every, pieces = PartialRanges(own.shape, fmt, x.device), _stretches(x, fmt, own)
    for piece in pieces:
        every.add(piece.region, part_ranges(piece.x, piece.block, fmt))

    def counts(power: Tensor, above: Tensor | None) -> Iterable[Counted]:
        for x, block, at in pieces:
            blocks = Blocks(x, block)
            limit = None if above is None else above[at].reshape(blocks.shape)
            yield at, blocks.magnitudes(power[at].reshape(blocks.shape), limit)

    ranges = every.whole(merge)
    return reference.with_means(ranges, SummedBlocks(ranges, counts, merge), fmt)
