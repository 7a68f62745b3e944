# SPDX-License-Identifier: BSD-3-Clause
"""Scales of a tensor of which each process has a share, with the bits of one process.

Ranges of blocks merge by minimum and maximum, and means are sums of integers: who had which share,
and in which order they merged, changes no bit.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from blockscale.core import reference
from blockscale.core.arithmetic.sums import mean_of, unit_exponent
from blockscale.core.block import WHOLE, Blocks, read_block
from blockscale.core.cuts import Share, line_of, parts_of, refined
from blockscale.core.format import Format
from blockscale.core.reference import QParams, Ranges

Merge = Callable[[Tensor, str], None]  # in place, over all shares: "max" or "sum"


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
    qparams, fine = parts_of(whole, fmt, own), refined(fmt, own)
    if fmt != fmt.plain and own.start < own.stop:
        qparams = reference.settled(x, reference.ranges(x, fine), qparams, fine)
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
    return reference.settled(x, ranges, qparams, fmt)


class _Stretch(NamedTuple):
    """Some elements of a share that no block of the whole tensor holds with others of it."""

    blocks: Blocks
    finite: Tensor  # 1 where a block holds a finite number, else 0
    region: tuple[slice, ...]  # its blocks among those of the whole tensor


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
            some = x.narrow(axis, first, stop - first)
            at = 0 if size == WHOLE else (start + first) // size
            count = 1 if size == WHOLE else -(-(start + stop) // size) - at
            region = (slice(None),) * line.axis + (slice(at, at + count),)
            finite = Blocks(some.isfinite().to(x.dtype), block).range()[1]
            pieces.append(_Stretch(Blocks(some, block), finite, region))
    return pieces


def _merged_ranges(x: Tensor, fmt: Format, own: Share, merge: Merge) -> Ranges:
    """The ranges of all blocks of the whole tensor, from the shares of all."""
    shape, end = fmt.block.scale_shape(own.shape), torch.inf if fmt.offset is not None else 0.0
    low = torch.full(shape, end, device=x.device)
    high, poisoned = -low, torch.zeros(shape, device=x.device)
    pieces = _stretches(x, fmt, own)
    for piece in pieces:
        ranges = reference.extremes(piece.blocks, fmt)
        to = low[piece.region].shape
        some = (piece.finite > 0).reshape(to)
        low[piece.region] = torch.where(some, ranges.low.reshape(to), end)
        high[piece.region] = torch.where(some, ranges.high.reshape(to), -end)
        poisoned[piece.region] = ranges.poisoned.reshape(to).to(torch.float32)
    merge(all_of_it := torch.stack([-low, high, poisoned]), "max")
    low, high, poisoned = -all_of_it[0], all_of_it[1], all_of_it[2]
    none = low > high
    low, high = low.masked_fill(none, 0.0), high.masked_fill(none, 0.0)
    ranges = Ranges(low, high, poisoned > 0)
    return reference.with_means(ranges, _MergedBlocks(ranges, pieces, merge), fmt)


class _MergedBlocks(Blocks):
    """Stands in for the Blocks of the whole tensor, to an element that asks for means: sums of
    integers (docs/numerics.md, 3.2), so that no order of shares changes a bit."""

    def __init__(self, ranges: Ranges, stretches: Sequence[_Stretch], merge: Merge):
        self.shape = tuple(ranges.low.shape)
        self._stretches, self._merge = stretches, merge
        self._power = unit_exponent(torch.maximum(-ranges.low, ranges.high))

    def mean_magnitude(self, above: Tensor | None = None) -> Tensor:
        """The mean of |x| in each block, over |x| > `above` if given: one per block."""
        total = torch.zeros(self.shape, dtype=torch.int64, device=self._power.device)
        count = torch.zeros_like(total)
        for blocks, _, at in self._stretches:
            limit = None if above is None else above[at].reshape(blocks.shape)
            sums, number = blocks.magnitudes(self._power[at].reshape(blocks.shape), limit)
            total[at], count[at] = sums.reshape(total[at].shape), number.reshape(total[at].shape)
        self._merge(total, "sum")
        self._merge(count, "sum")
        return mean_of(total, count, self._power)
