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
from collections.abc import Callable, Iterator
from math import prod
from typing import NamedTuple

import torch
from torch import Tensor

from blockscale.core import reference
from blockscale.core.block import WHOLE, Block, Blocks, read_block
from blockscale.core.format import Format
from blockscale.core.reference import QParams
from blockscale.core.scale import TwoLevel
from blockscale.ops import primitives

SLAB = 1 << 19  # elements; temporaries of the reference take up to 150 bytes for each
_STOCHASTIC = 4  # times the memory: Philox computes in int64

Read = Callable[[int, int], Tensor]  # rows [start, stop) of the stored tensor, in its own dtype


class Piece(NamedTuple):
    """Part of what is stored: `rows` [r, ...] from index `row` of dimension 0 on."""

    part: str  # one of export.metadata.PARTS
    row: int
    rows: Tensor


class Ranges(NamedTuple):
    """What the scales of a slab are chosen from, in the scale's shape."""

    low: Tensor
    high: Tensor
    poisoned: Tensor


def tensor_seed(seed: int, name: str) -> int:
    """The seed of one tensor of a run: the same in every process and whatever comes before it."""
    digest = hashlib.blake2b(f"{seed}:{name}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1  # a nonnegative int64


def flat_shape(shape: tuple[int, ...], fmt: Format) -> tuple[int, ...]:
    """`shape` with its leading dimensions as one, where no block can tell the difference.

    So a stack of matrices in groups along the last dimension goes row by row, not matrix by matrix.
    """
    blocks = [fmt.block]
    if isinstance(fmt.scale, TwoLevel):
        blocks.append(fmt.scale.inner.block)
    if len(shape) < 3 or not all(_ignores_leading(block, len(shape)) for block in blocks):
        return shape
    return (prod(shape[:-1]), shape[-1])


def _ignores_leading(block: Block, rank: int) -> bool:
    *leading, last = block.sizes_for(rank)
    from_the_end = all(dim < 0 for dim, _ in block.sizes)  # so it means the same at rank 2
    return from_the_end and (set(leading) == {1} or {*leading, last} == {WHOLE})


def unit_rows(fmt: Format, rank: int) -> tuple[int, int]:
    """How many rows share one scale, and how many share everything; WHOLE for all of them."""
    rows = fmt.block.sizes_for(rank)[0] if rank else WHOLE
    if not isinstance(fmt.scale, TwoLevel):
        return rows, rows
    return rows, rows * (fmt.scale.inner.block.sizes_for(rank)[0] if rank else WHOLE)


def slab_rows(shape: tuple[int, ...], unit: int, elements: int) -> int:
    """Rows of a slab of about `elements`, a multiple of `unit`."""
    rows = max(elements // max(prod(shape[1:]), 1), 1)
    return max(rows // unit, 1) * unit


class TensorQuantizer:
    """Quantizes one tensor. `notes` is complete when `pieces` is exhausted."""

    def __init__(
        self, read: Read, shape: tuple[int, ...], fmt: Format, seed: int = 0, elements: int = SLAB
    ):
        """read: rows of a tensor of `shape`; seed: for stochastic rounding; elements: of a slab."""
        self._read, self._shape, self._fmt = read, shape, fmt
        self._seed = seed
        self._odd = self._clipped = self._scales = 0
        if fmt.rounding == "stochastic":
            elements = max(elements // _STOCHASTIC, 1)
        count = shape[0] if shape else 1
        self._block_rows, self._outer_rows = unit_rows(fmt, len(shape))
        means = self._block_rows == WHOLE and _takes_means(fmt)
        whole = means or len(shape) < 2  # codes of a vector are packed along its rows
        step = (
            count
            if whole
            else slab_rows(shape, self._outer_rows or self._block_rows or 1, elements)
        )
        starts = range(0, count, max(step, 1)) if count else (0,)
        self._slabs = [(start, min(start + step, count)) for start in starts]

    def pieces(self) -> Iterator[Piece]:
        """Codes and scales, slab by slab; each part's rows come in order."""
        if len(self._slabs) == 1 or self._outer_rows != WHOLE:
            yield from self._independent()
        elif self._block_rows == WHOLE:
            yield from self._with_shared_scales()
        else:
            yield from self._with_shared_outer()

    @property
    def notes(self) -> tuple[str, ...]:
        """What a user should know about this tensor in this format."""
        count = prod(self._shape)
        odd = f"{self._odd} of {count} weights are NaN or infinite"
        clipped = (
            f"{self._clipped} of {self._scales} scales are outside the range of {self._fmt.scale}"
        )
        return tuple([odd] * bool(self._odd) + [clipped] * bool(self._clipped))

    def _independent(self) -> Iterator[Piece]:
        for start, stop in self._slabs:
            x = self._read(start, stop)
            qparams = self._choose(self._ranges(x))
            yield from self._scales_at(qparams, start)
            yield self._codes(x, start, qparams)

    def _with_shared_scales(self) -> Iterator[Piece]:
        parts = [self._ranges(self._read(*slab)) for slab in self._slabs]
        merged = Ranges(
            torch.stack([part.low for part in parts]).amin(0),
            torch.stack([part.high for part in parts]).amax(0),
            torch.stack([part.poisoned for part in parts]).any(0),
        )
        qparams = self._choose(merged)
        yield from self._scales_at(qparams, 0)
        for start, stop in self._slabs:
            yield self._codes(self._read(start, stop), start, qparams)

    def _with_shared_outer(self) -> Iterator[Piece]:
        """An outer scale depends on the largest numerator of its blocks alone.

        So one row that holds the largest of each column stands for all rows outside the slab.
        """
        tops = [self._tops(self._ranges(self._read(*slab))) for slab in self._slabs]
        top = torch.cat(tops).amax(0, keepdim=True)
        extra = Ranges(torch.zeros_like(top), top, torch.zeros_like(top, dtype=torch.bool))
        self._odd = 0  # the second pass counts them again
        for start, stop in self._slabs:
            x = self._read(start, stop)
            ranges = self._ranges(x)
            beside = Ranges(*(torch.cat(pair) for pair in zip(ranges, extra, strict=True)))
            qparams = self._choose(beside, ranges.low.shape[0])
            yield from self._scales_at(qparams, start)
            yield self._codes(x, start, qparams)

    def _tops(self, ranges: Ranges) -> Tensor:
        """The largest numerators along dimension 0, of blocks that take part in an outer scale."""
        a = reference.numerator(ranges.low, ranges.high, self._fmt)
        return torch.where(ranges.poisoned, 0.0, a).amax(0, keepdim=True)

    def _ranges(self, x: Tensor) -> Ranges:
        """The first half of reference.choose_qparams, which a slab may do by itself."""
        wide = reference.widen(x)
        blocks = Blocks(wide, self._fmt.block)
        low, high = blocks.range()
        magnitude = self._fmt.element.magnitude(blocks)
        if magnitude is not None:
            low, high = -magnitude, magnitude
        odd = int((~wide.isfinite()).sum())
        self._odd += odd
        if odd and self._fmt.scale.poisons:
            return Ranges(low, high, blocks.poisoned())
        return Ranges(low, high, torch.zeros_like(low, dtype=torch.bool))

    def _choose(self, ranges: Ranges, count: int | None = None) -> QParams:
        """The scales of the first `count` rows of ranges, or of all."""
        low, high, poisoned = ranges
        clipped = reference.scale_saturates(low, high, self._fmt)
        scale, outer, zero_point = reference.qparams_from_range(low, high, self._fmt, poisoned)
        if count is not None:
            clipped, scale = clipped[:count], scale[:count]
            zero_point = None if zero_point is None else zero_point[:count]
        self._clipped += int(clipped.sum())
        self._scales += clipped.numel()
        return QParams(scale, outer, zero_point)

    def _scales_at(self, qparams: QParams, start: int) -> Iterator[Piece]:
        """The scale of the slab that starts at row `start`."""
        row = start // self._block_rows if self._block_rows else 0
        yield Piece("scale", row, qparams.scale)
        if qparams.zero_point is not None:
            yield Piece("zero_point", row, qparams.zero_point)
        if qparams.outer is not None and (self._outer_rows != WHOLE or start == 0):
            yield Piece("outer", start // self._outer_rows if start else 0, qparams.outer)

    def _codes(self, x: Tensor, start: int, qparams: QParams) -> Piece:
        seed = torch.tensor([self._seed, start * prod(self._shape[1:])])
        scale, outer, zero_point = qparams
        packed = primitives.quantize(x, scale, zero_point, outer, str(self._fmt), seed)
        return Piece("codes", start, packed)


def _takes_means(fmt: Format) -> bool:
    """Whether a scale is a mean instead of a largest value."""
    return fmt.element.magnitude(Blocks(torch.zeros(1), read_block("tensor"))) is not None
