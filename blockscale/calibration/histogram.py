# SPDX-License-Identifier: BSD-3-Clause
"""Histograms of floats whose bins are the floats' own leading bits, one for each block.

A bin is an octave [2^e, 2^(e+1)) cut into 256: its number is the exponent and the first 8 mantissa
bits of |x|, read from the bits, so that binning is exact for every float32 and costs two integer
operations. Kept are 16 octaves below the largest magnitude; what is smaller is in bin 0, which
stands for zero. Where the magnitude grows, the lowest octaves fall into bin 0: counts are exactly
those of the final range from the start, whatever the order of the data and wherever it was seen.
"""

from collections.abc import Callable
from dataclasses import replace
from math import prod
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from blockscale.calibration.observer import Observer
from blockscale.core import reference
from blockscale.core.block import Blocks, read_block
from blockscale.core.format import Format
from blockscale.core.operand import Quantizer
from blockscale.core.scale import FLOAT_SCALES
from blockscale.core.scales import Offset, TwoLevel
from blockscale.ops import primitives

# What a format makes of values under candidate ranges: the same rules that will be used.


def round_trips(values: Tensor, low: Tensor, high: Tensor, fmt: Format) -> Tensor:
    """Values [blocks, n] float32 of each block -> what each candidate leaves [c, blocks, n].

    low, high: the candidate ranges [c, scale's shape]. Scales are stored as the format stores them.
    """
    steps, zeros, offsets = [], [], []
    for each_low, each_high in zip(low, high, strict=True):
        poisoned = torch.zeros_like(each_low, dtype=torch.bool)
        qparams = reference.qparams_from_range(each_low, each_high, poisoned, fmt)
        steps.append(reference.step_of(qparams, fmt).flatten())
        zeros.append(qparams.zero_point)
        if fmt.offset is not None and qparams.offset is not None:
            offsets.append(fmt.offset.value(qparams.offset, qparams.offset_outer).flatten())
    # a block a row, under its step: the same arithmetic for every layout and every kind of scale
    float32 = FLOAT_SCALES["fp32"]
    rows = replace(fmt.deterministic, block=read_block("token"), scale=float32)
    if offsets:
        rows = replace(rows, offset=Offset(float32))
    more = [torch.stack(offsets).view(-1, 1)] if offsets else None
    zero_point = torch.stack([z.flatten() for z in zeros if z is not None]) if fmt.asym else None
    count = len(low)
    zero_point = None if zero_point is None else zero_point.view(-1, 1)
    by = Quantizer(torch.stack(steps).view(-1, 1), zero_point, None, str(rows), None, more)
    rounded: Tensor = primitives.fake_quantize(values.repeat(count, 1), by)
    return rounded.view(count, *values.shape)


def pinned(low: Tensor, high: Tensor, fmt: Format) -> Tensor:
    """Ranges [scale's shape] -> bool: blocks whose range must stay, as it sets the outer scale.

    Under two levels the scales of all blocks are relative to the largest. Where that one stays, a
    candidate for one block changes nothing for the others.
    """
    if not isinstance(fmt.scale, TwoLevel) or low.numel() == 1:
        return torch.zeros_like(low, dtype=torch.bool)
    numerator = reference.numerator(low, high, fmt)
    block = fmt.scale.inner.block
    return numerator == block.expand(Blocks(numerator, block).range()[1], numerator.shape)


_BITS = 8  # of the mantissa: bins an octave
_DROPPED = 23 - _BITS
OCTAVES = 16
BINS = OCTAVES << _BITS
_LARGEST = 2**26  # counts in all: 512 MiB
_MAGNITUDE = 0x7FFFFFFF


class Bins(NamedTuple):
    """A histogram of each block [blocks, n]: bins that hold something in ascending order of values.

    Where a block has fewer of them than another, it is filled up with mass 0 in place BINS.
    """

    value: Tensor  # float32, the middle of each bin; 0 for bin 0
    width: Tensor  # float32
    mass: Tensor  # float64, the counts or the sums of weights
    place: Tensor  # int64, the bin's number by magnitude
    low: Tensor  # float32 [blocks, 1], the range that each block has seen
    high: Tensor

    def clip(self, value: Tensor) -> Tensor:
        """Values [blocks, n] -> none outside what their block has seen."""
        return value.clamp(self.low, self.high)


class Histogram(Observer):
    """An observer that counts values in bins, of |x| or, where signs matter, of either sign.

    counts: int64 [scale's shape, sides, BINS]; sides: 1, or 2 for sign bits 0 and 1
    top: int32 [scale's shape], the exponent bits of the largest octave
    sums: float64 as counts, the weights of the counted, with `weighted`

    Raises ValueError, before it counts, where there are so many blocks that memory would not do.
    """

    counts: Tensor
    top: Tensor
    sums: Tensor

    def __init__(self, fmt: str | Format, weighted: bool = False):
        super().__init__(fmt)
        form = self.format
        is_directed = form.rounding in ("up", "down")
        self.sides = 1 + (form.wide or not form.element.signed or is_directed)
        self.weighted = weighted
        self._statistic("top", "max", dtype=torch.int32)
        self._statistic("counts", "sum", self.sides, BINS, dtype=torch.int64)
        if weighted:
            self._statistic("sums", "sum", self.sides, BINS, dtype=torch.float64)

    def _start(self, shape: tuple[int, ...]) -> None:
        if prod(shape) * self.sides * BINS > _LARGEST:
            raise ValueError(
                f"{self.fmt}: histograms of {prod(shape)} blocks would take "
                f"{prod(shape) * self.sides * BINS * 8 / 2**30:.1f} GiB of memory: use the "
                "observer 'min_max' or 'moving_average', or larger blocks"
            )
        super()._start(shape)

    def _update(
        self, x: Tensor, low: Tensor, high: Tensor, finite: Tensor | None, weight: Tensor | None
    ) -> None:
        super()._update(x, low, high, finite, weight)
        largest = torch.maximum(-low, high).masked_fill(low > high, 0.0)
        self._grow(_bits(largest) >> 23)
        index = self._flat(self._index(x), finite)
        _count(self.counts, index, None)
        if self.weighted:
            weight = torch.ones_like(x) if weight is None else weight
            _count(self.sums, index, self._flat(weight, finite).double())

    def _flat(self, x: Tensor, finite: Tensor | None) -> Tensor:
        """What belongs to finite elements [n], a channel's side by side: memory is local then."""
        if self.format.block.name == "channel-1":
            x, finite = x.t(), None if finite is None else finite.t()
        return x.flatten() if finite is None else x[finite]

    def _index(self, x: Tensor) -> Tensor:
        """x [...] finite float32 -> where in the flat counts each element belongs, int32 [...]."""
        block = self.format.block
        index = _bits(x) >> _DROPPED
        index -= block.expand(_first(self.top), x.shape)
        index.clamp_(min=0)
        if self.sides == 2:
            index.sub_(x.view(torch.int32) >> 31, alpha=BINS)
        if self.top.numel() > 1:
            place = torch.arange(self.top.numel(), dtype=torch.int32, device=x.device)
            start = (place * (self.sides * BINS)).reshape(self.top.shape)
            index += block.expand(start, x.shape)
        return index

    def _grow(self, top: Tensor) -> None:
        """Make the top octave at least `top` [scale's shape]: low octaves fall into bin 0."""
        shift = (top - self.top).clamp(min=0) << _BITS
        if not bool(shift.any()):
            return
        self.top = torch.maximum(self.top, top)
        place = torch.arange(BINS, device=top.device) - shift[..., None, None]
        place = place.clamp(min=0).expand(self.counts.shape)
        for name in ("counts", "sums")[: 1 + self.weighted]:
            old = self.get_buffer(name)
            self._buffers[name] = torch.zeros_like(old).scatter_add_(-1, place, old)

    def _align(self, largest: Callable[[str], Tensor]) -> None:
        self._grow(largest("top"))

    def bins(self, signed: bool = True) -> Bins:
        """The histogram of each block: of x where signs matter and `signed`, else of |x|."""
        edges = self.edges()
        width = edges.diff(dim=-1)
        value = edges[:, :-1] + width / 2
        value[:, 0] = 0.0
        mass = (self.sums if self.weighted else self.counts).double().view(-1, self.sides, BINS)
        place = torch.arange(BINS, device=edges.device)
        low, high = (end.view(-1, 1) for end in self.extremes())
        if signed and self.sides == 2:
            value = torch.cat([-value.flip(-1), value], -1)
            width = torch.cat([width.flip(-1), width], -1)
            mass = torch.cat([mass[:, 1].flip(-1), mass[:, 0]], -1)
            place = torch.cat([place.flip(-1), place])
        else:
            mass = mass.sum(1)
            low, high = torch.zeros_like(low), torch.maximum(-low, high)
        full = mass > 0
        count = max(1, int(full.sum(-1).max()))
        order = full.byte().argsort(dim=-1, descending=True, stable=True)[:, :count]
        place = torch.where(full, place, BINS).gather(-1, order)
        value, width, mass = (t.gather(-1, order) for t in (value, width, mass))
        return Bins(value, width, mass, place, low, high)

    def edges(self) -> Tensor:
        """Where bins of magnitudes begin and end [blocks, BINS + 1] float32."""
        return _edges(self.top.flatten())


def _count(counts: Tensor, index: Tensor, weight: Tensor | None) -> None:
    """Add 1, or `weight` [n] float64, to the flat counts at `index` [n]."""
    if index.numel() > counts.numel():
        counts += torch.bincount(index, weight, minlength=counts.numel()).view_as(counts)
    else:
        one = counts.new_ones(()).expand(index.shape) if weight is None else weight
        counts.view(-1).scatter_add_(0, index.long(), one)


def _bits(x: Tensor) -> Tensor:
    """x [...] float32 -> the bits of |x| [...] int32, which have the order of |x|."""
    return x.view(torch.int32) & _MAGNITUDE


def _first(top: Tensor) -> Tensor:
    """The leading bits that bin 0 would have, by its place; negative near the subnormals."""
    return (top - (OCTAVES - 1)) << _BITS


def _edges(top: Tensor) -> Tensor:
    """Top octaves [blocks] -> edges of the bins [blocks, BINS + 1] float32; the first is 0."""
    leading = _first(top)[:, None] + torch.arange(BINS + 1, device=top.device, dtype=torch.int32)
    bits = (leading.clamp(min=0) << _DROPPED).clamp(max=0x7F7FFFFF)
    bits[:, 0] = 0
    return bits.view(torch.float32)


# Every value as it is while there are few of them, and their histogram when there are more.

CAPACITY = 2**16  # elements that are kept as they are


class Points(NamedTuple):
    """Values of each block [blocks, n] float32, and how many elements each stands for, float64."""

    value: Tensor
    mass: Tensor

    def mean_squared_error(self, low: Tensor, high: Tensor, fmt: Format) -> float:
        """What a format under this range [scale's shape] does to them, all blocks together."""
        rest = round_trips(self.value, low[None], high[None], fmt)[0]
        error = (rest.double() - self.value).square_().mul_(self.mass).sum()
        return float(error / self.mass.sum())


class KeptValues(Histogram):
    """A histogram, and beside it every finite element as long as there are at most 65536."""

    name: ClassVar[str] = "kept_values"
    means: ClassVar[bool] = True

    kept: Tensor  # float32 [n], every finite element while they fit
    owner: Tensor  # int32 [n], its block

    def __init__(self, fmt: str | Format):
        super().__init__(fmt)
        self._sample("kept")
        self._sample("owner", torch.int32)

    def _update(
        self, x: Tensor, low: Tensor, high: Tensor, finite: Tensor | None, weight: Tensor | None
    ) -> None:
        super()._update(x, low, high, finite, weight)
        count = x.numel() if finite is None else int(finite.sum())
        if self.finite + count > CAPACITY:
            self._drop()
            return
        place = torch.arange(low.numel(), dtype=torch.int32, device=x.device).reshape(low.shape)
        owner = self.format.block.expand(place, x.shape).expand(x.shape)
        self.kept = torch.cat([self.kept, self._flat(x, finite)])
        self.owner = torch.cat([self.owner, self._flat(owner, finite)])

    def _settle(self) -> None:
        if self.finite > CAPACITY:
            self._drop()

    def _drop(self) -> None:
        self.kept, self.owner = self.kept[:0].clone(), self.owner[:0].clone()

    @property
    def exact(self) -> bool:
        """Whether everything that was seen is still kept."""
        return self.kept.numel() == self.finite

    def points(self) -> Points:
        """Every value while they are kept, and then the middles of the histogram's bins."""
        if not self.exact:
            bins = self.bins()
            return Points(bins.clip(bins.value), bins.mass)
        counts = torch.bincount(self.owner, minlength=self.low.numel())
        order = self.kept.argsort(stable=True)  # sums of errors do not depend on who saw what
        order = order[self.owner[order].argsort(stable=True)]
        start = counts.cumsum(0) - counts
        owner = self.owner[order].long()
        column = torch.arange(len(order), device=order.device) - start[owner]
        value = self.kept.new_zeros(self.low.numel(), max(int(counts.max()), 1))
        mass = torch.zeros_like(value, dtype=torch.float64)
        value[owner, column] = self.kept[order]
        mass[owner, column] = 1.0
        return Points(value, mass)
