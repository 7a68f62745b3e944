# SPDX-License-Identifier: BSD-3-Clause
"""Quantize one tensor a slab at a time, to the bits of quantizing it whole.

The fused kernel of a format chooses scales and codes at once, where there is one
(layers/saturation.py), else the reference. Three cases, by what spans the slabs
(blockscale/files/slabs/cutting.py):

    nothing         a slab of whole blocks is quantized by itself: group32, token, channel0, tiles
    a block         a first pass merges the ranges of the slabs, and two more the sums of means
                    (binary, ternary); a last one quantizes with the scales of the whole: tensor
    an outer scale  a first pass finds the largest numerators, which alone decide the outer scale;
                    a second one quantizes each slab beside it: nvfp4. Where offsets have an outer
                    scale, too, it takes the ranges of all blocks, as above. Where other tensors
                    share the outer scale, the first pass is over all of them (`top`, `share`)

Blocks over the flattened tensor that end within rows let nothing be cut: it is one slab.
"""

from collections.abc import Iterator
from math import prod
from typing import NamedTuple

import torch
from torch import Tensor

from blockscale.core import reference
from blockscale.core.block import WHOLE
from blockscale.core.cuts import Sizes, block_sizes, can_be_cut
from blockscale.core.format import Format
from blockscale.core.operand import quantizer
from blockscale.core.reference import QParams, Ranges
from blockscale.core.shared_scales import Region
from blockscale.files.slabs import cutting
from blockscale.files.slabs.cutting import Cuts, Slab
from blockscale.files.slabs.first_pass import FirstPass, Read
from blockscale.files.slabs.pool import Map
from blockscale.layers.saturation import (
    by_kernel,
    clipped,
    clipping_note,
    ends,
    has_kernel,
    lost_signs,
    not_finite,
    saturates,
)
from blockscale.ops import primitives
from blockscale.ops.batching import within_rows

_LARGE = 4  # slabs this many times too large are not held several at a time
_STOCHASTIC = 4  # times the memory: Philox computes in int64


class StoredRows(NamedTuple):
    """Part of what is stored: `rows` [r, ...] from row `row` on.

    Rows are those of dimension 0, or of the first two dimensions taken as one.
    """

    part: str  # one of files.metadata.PARTS
    row: int
    rows: Tensor


class SlabRows(NamedTuple):
    """What a slab gives: pieces, and what is to be noted of it."""

    pieces: tuple[StoredRows, ...]
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
        self._top: Tensor | None = None  # as FirstPass.tops, where an outer scale is shared
        self._outer: Tensor | None = None
        self._signs: tuple[str, ...] = ()
        if elements is None:
            elements = cutting.SLAB * (cutting.BY_KERNEL if _in_large_slabs(fmt, shape) else 1)
        if fmt.rounding == "stochastic":
            elements = max(elements // _STOCHASTIC, 1)
        self._shape = cutting.flat_shape(shape, fmt)
        if can_be_cut(fmt):
            self._sizes = block_sizes(fmt, len(self._shape))
            self._cuts = cutting.cut_slabs(self._shape, self._sizes.values(), elements)
        else:
            self._sizes = dict.fromkeys(fmt.parts, (WHOLE,) * len(shape))
            self._cuts = Cuts(shape, 0, max(shape[0] if shape else 1, 1))
        self._scale = self._sizes["scale"]
        if self._cuts.elements > _LARGE * elements:
            self._map = map  # blocks that may not be cut: one at a time
        self._first = FirstPass(read, self._cuts, self._sizes, fmt, self._map)

    def top(self) -> Tensor:
        """The largest numerator of the tensor, in one pass: as core.joined_weights.top_of."""
        return self._first.tops().amax(-2, keepdim=True)

    def share(self, top: Tensor) -> None:
        """Take the outer scale of all whose largest numerator this is."""
        self._top = top.expand(self._fmt.stored(self._shape)["outer"][1])
        self._outer = reference.outer_of(self._top, self._fmt)

    def pieces(self) -> Iterator[StoredRows]:
        """Codes and scales, slab by slab; each part's rows come in order."""
        for part in self._passes():
            self._odd += part.odd
            self._clipped += part.clipped
            self._scales += part.scales
            self._signs = self._signs or part.signs
            yield from part.pieces

    @property
    def notes(self) -> tuple[str, ...]:
        """What a user should know about this tensor in this format."""
        notes = []
        if self._odd:
            notes.append(f"{self._odd} of {prod(self._shape)} weights are NaN or infinite")
        notes += clipping_note(self._clipped, self._scales, self._fmt)
        return (*notes, *self._signs)

    def _passes(self) -> Iterator[SlabRows]:
        cuts = self._cuts
        spans = {part for part, sizes in self._sizes.items() if cuts.spans(sizes)}
        if spans and not self._outer_alone(spans):
            ranges = self._first.ranges()
            qparams, output = self._choose_all(ranges)
            self._settle(ranges, qparams)
            yield output._replace(pieces=tuple(self._scale_pieces(qparams, cuts.slabs[0])))
            yield from self._map(lambda slab: self._with_scale(slab, qparams), cuts.slabs)
        else:
            if spans and self._outer is None:
                self._top = self._first.tops()
                self._outer = reference.outer_of(self._top, self._fmt)
            yield from self._map(self._alone, cuts.slabs)

    def _outer_alone(self, spans: set[str]) -> bool:
        """Whether what spans slabs is chosen before them: an outer scale, not across matrices."""
        if self._cuts.dim:
            return spans == {"outer"} and self._sizes["outer"][0] == 1
        return not spans & {"scale", "offset_outer"}

    def _alone(self, slab: Slab) -> SlabRows:
        """A slab that shares nothing with the others but an outer scale."""
        x = self._read(self._cuts, slab)
        return self._fused(x, slab) or self._by_reference(x, slab)

    def _fused(self, x: Tensor, slab: Slab) -> SlabRows | None:
        """Codes and scales by one kernel; None where there is none."""
        top = None if self._top is None else self._top[self._outers(slab)]
        rows = x
        if top is not None and self._cuts.dim:  # of a stack, this is a matrix
            if (1, *self._fmt.block.sizes_for(2)) != self._scale:
                return None
            rows, top = x[0], top[0]
        result = by_kernel(rows, self._fmt, self._seed_at(slab), top)
        if result is None:
            return None
        packed, qparams = result
        if rows is not x:
            packed, outer = packed[None], qparams.outer
            assert outer is not None
            qparams = QParams(qparams.scale[None], outer[None])
        return SlabRows(
            (*self._scale_pieces(qparams, slab), self._codes_piece(packed, slab)),
            self._not_finite(x),
            clipped(x, qparams, self._fmt),
            qparams.scale.numel(),
            self._lost_signs(x),
        )

    def _not_finite(self, x: Tensor) -> int:
        return 0 if self._first.finite else not_finite(x)

    def _lost_signs(self, x: Tensor) -> tuple[str, ...]:
        """A note, where a format without values below 0 loses some."""
        if self._fmt.element.signed:
            return ()
        both = ends(x)
        low = torch.tensor(both[0]) if both is not None else x.masked_fill(~x.isfinite(), 0.0)
        return tuple(lost_signs("weight", low, self._fmt))

    def _by_reference(self, x: Tensor, slab: Slab) -> SlabRows:
        """The same step by step, in slabs that are smaller if this one is made for a kernel."""
        dim, unit = self._cuts.dim, self._cuts.unit(self._sizes.values())
        count = max(cutting.SLAB * slab.rows // max(x.numel(), 1) // unit, 1) * unit
        if count >= slab.rows:
            return self._in_steps(x, slab)
        each = [
            self._in_steps(rows, slab.part(at * count, rows.shape[dim]))
            for at, rows in enumerate(x.split(count, dim))
        ]
        pieces = tuple(piece for part in each for piece in part.pieces)
        odd, clips, scales = (
            sum(getattr(part, name) for part in each) for name in ("odd", "clipped", "scales")
        )
        return SlabRows(pieces, odd, clips, scales, next((d.signs for d in each if d.signs), ()))

    def _in_steps(self, x: Tensor, slab: Slab) -> SlabRows:
        outer = None if self._outer is None else self._outer[self._outers(slab)]
        ranges = reference.ranges(x, self._fmt)
        qparams, part = self._choose(ranges, outer)
        qparams = reference.settle(x, ranges, qparams, self._fmt, primitives.block_errors)
        pieces = (*self._scale_pieces(qparams, slab), self._codes(x, slab, qparams))
        return part._replace(pieces=pieces, odd=self._not_finite(x))

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
            qparams.scale[at] = reference.settle(
                x, some, parts, self._fmt, primitives.block_errors
            ).scale

    def _with_scale(self, slab: Slab, qparams: QParams) -> SlabRows:
        """A slab that takes its part of the scales of the whole tensor."""
        x = self._read(self._cuts, slab)
        regions = {part: self._cuts.region(slab, sizes) for part, sizes in self._sizes.items()}
        own = QParams(**{part: getattr(qparams, part)[at] for part, at in regions.items()})
        return SlabRows((self._codes(x, slab, own),), odd=self._not_finite(x))

    def _outers(self, slab: Slab) -> Region:
        """The outer scales that a slab has a part of."""
        return self._cuts.region(slab, self._sizes["outer"])

    def _choose_all(self, ranges: Ranges) -> tuple[QParams, SlabRows]:
        """`_choose` for all, a matrix at a time where a stack's share nothing: it needs memory."""
        if len(self._shape) < 3 or any(sizes[0] != 1 for sizes in self._sizes.values()):
            return self._choose(ranges, self._outer)
        outers = [None] * len(ranges.low) if self._outer is None else self._outer.split(1)
        matrices = zip(*(part.split(1) for part in ranges), strict=True)
        each = [
            self._choose(Ranges(*one), outer) for one, outer in zip(matrices, outers, strict=True)
        ]
        clipped, scales = (
            sum(getattr(output, n) for _, output in each) for n in ("clipped", "scales")
        )
        signs = next((output.signs for _, output in each if output.signs), ())
        return cutting.join(q for q, _ in each), SlabRows((), 0, clipped, scales, signs)

    def _choose(self, ranges: Ranges, outer: Tensor | None) -> tuple[QParams, SlabRows]:
        """The scales of blocks, beside an outer one if it is given, and how many do not fit."""
        clipped = saturates(ranges.low, ranges.high, self._fmt, outer)
        qparams = reference.qparams_from_range(*ranges, self._fmt, outer)
        signs = tuple(lost_signs("weight", ranges.low, self._fmt))
        return qparams, SlabRows(
            (), clipped=int(clipped.sum()), scales=clipped.numel(), signs=signs
        )

    def _scale_pieces(self, qparams: QParams, slab: Slab) -> Iterator[StoredRows]:
        """The scales of a slab; what several share comes with the first of them."""
        for part, sizes in self._sizes.items():
            if slab.start == 0 or not self._cuts.spans(sizes):
                yield StoredRows(part, self._row(slab, sizes), self._flat(getattr(qparams, part)))

    def _row(self, slab: Slab, sizes: Sizes) -> int:
        """Where a slab's part of something begins that has one entry for each block of `sizes`."""
        size = sizes[self._cuts.dim] if self._shape else WHOLE
        if size == WHOLE:  # shared by all slabs of a matrix, and written with the first of them
            return slab.matrix
        return slab.matrix * -(-self._cuts.count // size) + slab.start // size

    def _codes(self, x: Tensor, slab: Slab, qparams: QParams) -> StoredRows:
        packed = primitives.quantize(x, quantizer(qparams, self._fmt, self._seed_at(slab)))
        return self._codes_piece(packed, slab)

    def _seed_at(self, slab: Slab) -> Tensor:
        """The seed, and the index of a slab's first element."""
        return torch.tensor([self._seed, self._first_row(slab) * self._row_size])

    def _codes_piece(self, packed: Tensor, slab: Slab) -> StoredRows:
        return StoredRows("codes", self._first_row(slab), self._flat(packed))

    def _first_row(self, slab: Slab) -> int:
        """The first row of a slab, those of the matrices before it counted."""
        return slab.matrix * self._cuts.count + slab.start

    @property
    def _row_size(self) -> int:
        return prod(self._shape[self._cuts.dim + 1 :])

    def _flat(self, part: Tensor) -> Tensor:
        """Part of what is stored, with the dimensions up to the cut one as one."""
        return part.flatten(0, 1) if self._cuts.dim else part


def _in_large_slabs(fmt: Format, shape: tuple[int, ...]) -> bool:
    """Whether slabs go to a kernel, or what is asked of them takes little memory beside them."""
    if not has_kernel(fmt) or not can_be_cut(fmt):
        return False
    sizes = block_sizes(fmt, len(shape))["scale"]
    if WHOLE not in sizes[:-1]:
        return True
    numbers = fmt.element.numbers(fmt.wide)
    by_range = numbers is not None and numbers.statistic in ("magnitude", "high")
    alone = sizes[0] in (1, WHOLE) and all(size == WHOLE for size in sizes[1:])
    return by_range and alone and fmt.offset is None
