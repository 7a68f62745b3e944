"""Quantize one tensor a slab of rows at a time, to the bits of quantizing it whole.

Rows are those of dimension 0 as stored. Three cases, by what spans them:

    nothing         a slab of whole blocks is quantized by itself: group32, token, channel0, tiles
    a block         a first pass merges the ranges of the slabs, a second one quantizes with the
                    scale of the whole: tensor, channel1
    an outer scale  a first pass finds the largest numerators, which alone decide the outer scale;
                    a second one quantizes each slab beside them: nvfp4

Means (binary, ternary) do not merge: where such a block spans the rows, the tensor is held whole.
"""

import hashlib
from collections.abc import Iterator
from functools import reduce
from math import prod
from typing import NamedTuple

import torch
from torch import Tensor

from blockscale.core import reference
from blockscale.core.block import WHOLE, Blocks, read_block
from blockscale.core.format import Format
from blockscale.core.reference import QParams, Ranges
from blockscale.export import slabs
from blockscale.export.slabs import Map, Read, slab_rows, unit_rows
from blockscale.ops import primitives

_STOCHASTIC = 4  # times the memory: Philox computes in int64

Slab = tuple[int, int]  # rows [start, stop)


class Piece(NamedTuple):
    """Part of what is stored: `rows` [r, ...] from index `row` of dimension 0 on."""

    part: str  # one of export.metadata.PARTS
    row: int
    rows: Tensor


class Done(NamedTuple):
    """What a slab gives: pieces, and what is to be noted of it."""

    pieces: tuple[Piece, ...]
    odd: int = 0  # NaN and infinite weights
    clipped: int = 0  # scales that their format cannot hold
    scales: int = 0


def tensor_seed(seed: int, name: str) -> int:
    """The seed of one tensor of a run: the same in every process and whatever comes before it."""
    digest = hashlib.blake2b(f"{seed}:{name}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1  # a nonnegative int64


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
        """read: rows of a tensor of `shape`; seed: for stochastic rounding; elements: of a slab."""
        self._read, self._shape, self._fmt, self._seed, self._map = read, shape, fmt, seed, run
        self._odd = self._clipped = self._scales = 0
        elements = slabs.SLAB if elements is None else elements
        if fmt.rounding == "stochastic":
            elements = max(elements // _STOCHASTIC, 1)
        count = shape[0] if shape else 1
        self._block_rows, self._outer_rows = unit_rows(fmt, len(shape))
        rows = slab_rows(shape, self._outer_rows or self._block_rows or 1, elements)
        means = self._block_rows == WHOLE and _takes_means(fmt)
        if means or len(shape) < 2:  # codes of a vector are packed along its rows
            rows = count
        self._slabs: list[Slab] = slabs.slabs(count, rows)

    def pieces(self) -> Iterator[Piece]:
        """Codes and scales, slab by slab; each part's rows come in order."""
        for done in self._passes():
            self._odd += done.odd
            self._clipped += done.clipped
            self._scales += done.scales
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
        return tuple(notes)

    def _passes(self) -> Iterator[Done]:
        if len(self._slabs) == 1 or self._outer_rows != WHOLE:
            yield from self._map(self._alone, self._slabs)
        elif self._block_rows == WHOLE:
            merged = reduce(_merge, self._map(self._ranges_of, self._slabs))
            qparams, done = self._choose(merged)
            yield done._replace(pieces=tuple(self._scale_pieces(qparams, 0)))
            yield from self._map(lambda slab: self._with_scale(slab, qparams), self._slabs)
        else:
            top = reduce(torch.maximum, self._map(self._top_of, self._slabs))
            extra = Ranges(torch.zeros_like(top), top, torch.zeros_like(top, dtype=torch.bool))
            yield from self._map(lambda slab: self._beside(slab, extra), self._slabs)

    def _alone(self, slab: Slab) -> Done:
        """A slab that shares nothing with the others."""
        x = self._read(*slab)
        qparams, done = self._choose(reference.ranges(x, self._fmt))
        pieces = (*self._scale_pieces(qparams, slab[0]), self._codes(x, slab[0], qparams))
        return done._replace(pieces=pieces, odd=_count_odd(x))

    def _with_scale(self, slab: Slab, qparams: QParams) -> Done:
        """A slab whose scales are those of the whole tensor."""
        x = self._read(*slab)
        return Done((self._codes(x, slab[0], qparams),), odd=_count_odd(x))

    def _beside(self, slab: Slab, extra: Ranges) -> Done:
        """A slab that shares an outer scale with the others.

        An outer scale depends on the largest numerator of its blocks alone. So one row that holds
        the largest of each column stands for all rows outside the slab.
        """
        x = self._read(*slab)
        ranges = reference.ranges(x, self._fmt)
        both = Ranges(*(torch.cat(pair) for pair in zip(ranges, extra, strict=True)))
        qparams, done = self._choose(both, ranges.low.shape[0])
        pieces = (*self._scale_pieces(qparams, slab[0]), self._codes(x, slab[0], qparams))
        return done._replace(pieces=pieces, odd=_count_odd(x))

    def _top_of(self, slab: Slab) -> Tensor:
        """The largest numerators along dimension 0, of blocks that take part in an outer scale."""
        ranges = self._ranges_of(slab)
        a = reference.numerator(ranges.low, ranges.high, self._fmt)
        return torch.where(ranges.poisoned, 0.0, a).amax(0, keepdim=True)

    def _ranges_of(self, slab: Slab) -> Ranges:
        return reference.ranges(self._read(*slab), self._fmt)

    def _choose(self, ranges: Ranges, count: int | None = None) -> tuple[QParams, Done]:
        """The scales of the first `count` rows of ranges, or of all, and how many do not fit."""
        clipped = reference.scale_saturates(ranges.low, ranges.high, self._fmt)
        scale, outer, zero_point = reference.qparams_from_range(*ranges, self._fmt)
        if count is not None:
            clipped, scale = clipped[:count], scale[:count]
            zero_point = None if zero_point is None else zero_point[:count]
        done = Done((), clipped=int(clipped.sum()), scales=clipped.numel())
        return QParams(scale, outer, zero_point), done

    def _scale_pieces(self, qparams: QParams, start: int) -> Iterator[Piece]:
        """The scales of the slab that starts at row `start`; a shared outer scale comes once."""
        row = start // self._block_rows if start else 0
        yield Piece("scale", row, qparams.scale)
        if qparams.zero_point is not None:
            yield Piece("zero_point", row, qparams.zero_point)
        if qparams.outer is not None and (start == 0 or self._outer_rows != WHOLE):
            yield Piece("outer", start // self._outer_rows if start else 0, qparams.outer)

    def _codes(self, x: Tensor, start: int, qparams: QParams) -> Piece:
        seed = torch.tensor([self._seed, start * prod(self._shape[1:])])
        scale, outer, zero_point = qparams
        packed = primitives.quantize(x, scale, zero_point, outer, str(self._fmt), seed)
        return Piece("codes", start, packed)


def _merge(a: Ranges, b: Ranges) -> Ranges:
    """The ranges of two slabs that share their scales."""
    low, high = torch.minimum(a.low, b.low), torch.maximum(a.high, b.high)
    return Ranges(low, high, a.poisoned | b.poisoned)


def _count_odd(x: Tensor) -> int:
    return x.numel() - int(x.isfinite().sum())


def _takes_means(fmt: Format) -> bool:
    """Whether a scale is a mean instead of a largest value."""
    return fmt.element.magnitude(Blocks(torch.zeros(1), read_block("tensor"))) is not None
