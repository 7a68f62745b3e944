# SPDX-License-Identifier: BSD-3-Clause
"""What one quantized tensor is measured by: its codes, and how far they are from the floats."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from blockscale.core import reference
from blockscale.core.cuts import Sizes, block_sizes, can_be_cut
from blockscale.core.elements.int_float import IntFloat
from blockscale.core.format import Format
from blockscale.core.reference import QParams
from blockscale.files.slabs.cutting import Cuts, Slab, cut_slabs
from blockscale.layers.before import Before
from blockscale.ops.batching import in_blocks_of, within_rows
from blockscale.ops.tensor import QTensor

# A quantized tensor in memory, a slab at a time, so that floats of all of it are never there.


ELEMENTS = 1 << 19  # of a slab; what is computed of it takes about 60 bytes for each


def slabs(q: QTensor, elements: int = ELEMENTS) -> Iterator[tuple[Cuts, Slab, QTensor]]:
    """(how q is cut, which slab, the slab as a QTensor of q's rank), in order.

    No slab cuts a block in two. Where blocks run over rows, and where values are learned, q is one
    slab.
    """
    shape, fmt = tuple(q.shape), within_rows(q.format, q.shape)
    whole = Cuts(shape, 0, max(shape[0] if shape else 1, 1))
    if len(shape) < 2 or not can_be_cut(fmt) or fmt.element.learned:
        yield whole, whole.slabs[0], q
        return
    qparams = q.qparams if fmt == q.format else in_blocks_of(q.qparams, fmt, shape)
    sizes = block_sizes(fmt, len(shape))
    cuts = cut_slabs(shape, sizes.values(), elements)
    for slab in cuts.slabs:
        parts = {part: _part(getattr(qparams, part), sizes[part], cuts, slab) for part in fmt.parts}
        codes = _part(q.packed, (1,) * len(shape), cuts, slab)
        yield cuts, slab, replace(q, packed=codes, qparams=QParams(**parts), format=fmt)


def rows(x: Tensor, cuts: Cuts, slab: Slab) -> Tensor:
    """The same slab of a tensor of floats of the same shape."""
    return x if not x.ndim else _part(x, (1,) * x.ndim, cuts, slab)


def _part(tensor: Tensor, sizes: Sizes, cuts: Cuts, slab: Slab) -> Tensor:
    """What a slab needs of a tensor that has one entry for each block of `sizes`."""
    return tensor[cuts.region(slab, sizes)].contiguous()


BINS = 96  # of a histogram
_MOST_BITS = 16  # of a code whose values are counted one by one
_FEW = 64  # values of a format that has a bar for each


@dataclass(frozen=True)
class CodeValues:
    """The values that the codes of a tensor can have, in steps of their blocks.

    values: float64 [2^bits] by code; NaN where a code means no number
    low, high: the ends, where numbers saturate
    edges: float64 [BINS + 1], of a histogram over these values with a margin on either side
    """

    values: Tensor
    low: float
    high: float
    edges: Tensor

    @classmethod
    def of(cls, q: QTensor) -> "CodeValues":
        """The grid of a tensor's format; a learned one is the tensor's own. Where the signs of
        scales choose between two, that of scales above 0."""
        element = q.format.element.with_book(q.qparams.book)
        if isinstance(element, IntFloat):
            element = element.floats
        patterns = torch.arange(2 ** min(element.bits, _MOST_BITS))
        narrow = patterns.to(torch.uint8 if element.bits <= 8 else torch.int32)
        values = element.decode(element.from_bits(narrow)).double()
        low, high = element.limits(q.format.wide)
        outside = (values < low) | (values > high) | ~values.isfinite()
        margin = 0.09 * (high - low)
        edges = torch.linspace(low - margin, high + margin, BINS + 1, dtype=torch.float64)
        return cls(values.masked_fill(outside, torch.nan), low, high, edges)

    @property
    def points(self) -> list[float]:
        """The values in order, each once."""
        numbers = self.values[~self.values.isnan()]
        return [float(each) for each in (numbers + 0.0).unique()]


@dataclass
class TensorMeasures:
    """Sums over a tensor; what needs the float tensor stays None without it."""

    grid: CodeValues
    format: Format
    elements: int = 0
    codes: Tensor = field(default_factory=lambda: torch.zeros(0))
    signal: float | None = None
    noise: float | None = None
    largest: float | None = None
    odd: int = 0
    clipped: int | None = None
    weights: Tensor | None = None  # how many lie in each bin of the grid's edges
    beyond: int = 0  # how many lie outside of all bins

    @property
    def sqnr(self) -> float | None:
        """dB: 10 log10 (sum a² / sum (a - b)²), infinite where the two are equal."""
        if self.noise is None or self.signal is None:
            return None
        if self.noise == 0:
            return math.inf
        return 10 * math.log10(self.signal / self.noise) if self.signal > 0 else -math.inf

    @property
    def at_ends(self) -> float:
        """The share of elements whose code is the smallest or the largest value of the grid.

        An unsigned grid without a zero point has only one: 0 is not where it saturates.
        """
        values, grid = self.grid.values, self.grid
        end = values >= grid.high
        if grid.low < 0 or self.format.asym or self.format.offset is not None:
            end |= values <= grid.low
        return float(self.codes[end].sum()) / max(self.elements, 1)

    @property
    def entropy(self) -> float:
        """Bits that a code tells on average: -sum p log2 p over the codes."""
        shares = self.codes[self.codes > 0].double() / max(self.elements, 1)
        return float(-(shares * shares.log2()).sum()) + 0.0

    def to_dict(self) -> dict[str, Any]:
        """Figures for people, as plain data; what was not measured is left out."""
        data: dict[str, Any] = {"at_ends": self.at_ends, "entropy": self.entropy}
        if self.clipped is not None:
            sqnr = self.sqnr
            data |= {
                "sqnr": sqnr if sqnr is not None and math.isfinite(sqnr) else None,
                "exact": self.noise == 0 and not self.odd,
                "max_error": self.largest,
                "clipped": self.clipped / max(self.elements, 1),
            }
        return data | ({"odd": self.odd} if self.odd else {})

    def histogram(self) -> dict[str, Any]:
        """Counts as plain data: of each value of a small grid, else of each bin; and of floats."""
        values, points = self.grid.values, self.grid.points
        edges = self.grid.edges
        data: dict[str, Any] = {"from": float(edges[0]), "to": float(edges[-1])}
        if len(points) <= _FEW:
            data["values"] = [int(self.codes[values == point].sum()) for point in points]
        else:
            is_number = ~values.isnan()
            at = (torch.bucketize(values[is_number], edges) - 1).clamp(0, BINS - 1)
            counts = torch.zeros(BINS, dtype=torch.int64).index_add_(0, at, self.codes[is_number])
            data["codes"] = counts.tolist()
        if self.weights is not None:
            data |= {"weights": self.weights.tolist(), "beyond": self.beyond}
        return data


def measure(
    q: QTensor,
    source: Tensor | None = None,
    before: Before | None = None,
    elements: int = ELEMENTS,
) -> TensorMeasures:
    """Measure a tensor, `elements` at a time.

    source: the float tensor [q's shape] that q stands for
    before: what the layer's input goes through: q then stands for `before.to_weight(source)`
    Raises ValueError for a source of another shape.
    """
    if source is not None and tuple(source.shape) != tuple(q.shape):
        raise ValueError(f"the float tensor has shape {tuple(source.shape)}, expected {q.shape}")
    grid = CodeValues.of(q)
    measures = TensorMeasures(
        grid, q.format, codes=torch.zeros(len(grid.values), dtype=torch.int64)
    )
    for cuts, slab, part in slabs(q, elements):
        _add_codes(measures, part)
        if source is not None:
            _add_errors(measures, part, rows(source, cuts, slab), before)
    return measures


def _add_codes(measures: TensorMeasures, part: QTensor) -> None:
    bits = part.format.element.to_bits(part.codes).flatten().to(torch.int64)
    measures.codes += torch.bincount(bits, minlength=len(measures.codes))
    measures.elements += bits.numel()


def _add_errors(
    measures: TensorMeasures, part: QTensor, source: Tensor, before: Before | None
) -> None:
    x, values = source.to(torch.float32), part.dequantize()
    if before is not None:
        values = before.from_weight(values)
    a, b = x.double(), values.double()
    finite = a.isfinite() & b.isfinite()
    measures.odd += int((~finite & (a != b) & ~(a.isnan() & b.isnan())).sum())
    a, error = torch.where(finite, a, 0.0), torch.where(finite, a - b, 0.0)
    measures.signal = (measures.signal or 0.0) + float(a.square().sum())
    measures.noise = (measures.noise or 0.0) + float(error.square().sum())
    largest = float(error.abs().amax()) if error.numel() else 0.0
    measures.largest = max(measures.largest or 0.0, largest)
    _add_places(measures, part, x if before is None else before.to_weight(x))


def _add_places(measures: TensorMeasures, part: QTensor, x: Tensor) -> None:
    """Where the floats lie on the grid, and how many of them saturate."""
    y = reference.in_steps(x, part.qparams, part.format)
    zero = reference.expand_zero_point(part.qparams.zero_point, part.format, x.shape)
    # A block of zeros may have a step of 0: its elements are 0, and nothing saturates.
    y = y.masked_fill(y.isnan() & x.isfinite(), 0.0)
    inside = reference.in_range(x, part.qparams, part.format) | (y == 0)
    measures.clipped = (measures.clipped or 0) + int((~inside & x.isfinite()).sum())
    places = (y if zero is None else y + zero)[x.isfinite()]
    low, high = float(measures.grid.edges[0]), float(measures.grid.edges[-1])
    counts = torch.histc(places, BINS, low, high).to(torch.int64)  # of those within its ends
    measures.weights = counts if measures.weights is None else measures.weights + counts
    measures.beyond += places.numel() - int(counts.sum())
