# SPDX-License-Identifier: BSD-3-Clause
"""The numbers an element can be, as learned rounding sees them: how far apart they are about a
number, and which is nearest to one that was shifted by a part of that.

Numbers are counted in steps of their block. A *point* is what a code means: of an integer the code
itself (zero point included), of all others the value.
"""

from math import log
from typing import Protocol

import torch
from torch import Tensor

from blockscale.calibration.algorithms.block_scales import choose_scales, nearest_scale
from blockscale.core import reference
from blockscale.core.arithmetic.precision import FLT_MAX
from blockscale.core.elements.minifloat import Minifloat
from blockscale.core.format import Format
from blockscale.core.reference import QParams
from blockscale.core.rounding import nearest_even

# Scales and zero points that learned factors move: by how much each block's range is changed.
#
# Factors are counted in octaves: 0 leaves the range that was found, 1 doubles it. Whatever they
# say,
# the scale in use is the stored one, what the format's scale can be.


class BlockRanges:
    """The range of each block and how it moves.

    factors: float32 [ends, *scale's shape]: one end where a range is as wide to either side of 0;
        two, lower and upper, where the format has a zero point or an offset
    """

    def __init__(self, single: Format, start: QParams, outer: Tensor | None):
        """Start: scales, beside `outer` per block; single: the format that reads such outer scales
        (block_scales.per_block)."""
        self._fmt, self._start = single, start._replace(outer=outer)
        self._step = reference.step_of(self._start, single)
        self.two_ends = single.asym or single.offset is not None
        shape = (1 + self.two_ends, *start.scale.shape)
        self.factors = torch.zeros(shape, device=start.scale.device)
        self.has_factors = False  # whether any factor is not 0
        self._ends = _range_ends(self._start, self._step, single) if self.two_ends else None

    def qparams(self) -> QParams:
        """What is stored for the factors now, the outer scale per block."""
        if not self.has_factors:
            return self._start
        if self._ends is None:
            target = self._step * self.factors[0].exp2()
            size = target.abs().clamp(max=FLT_MAX)
            scale = nearest_scale(size.copysign(target), self._start.outer, self._fmt)
            return self._start._replace(scale=scale)
        low, high = self._ends
        lower, upper = self.factors.exp2()
        if self._fmt.offset is None:  # 0 stays inside
            low, high = (low * lower).clamp(max=0.0), (high * upper).clamp(min=0.0)
        else:
            half = (high - low) / 2
            low, high = low + half * (1 - lower), high + half * (upper - 1)
        low, high = low.clamp(-FLT_MAX, FLT_MAX), high.clamp(-FLT_MAX, FLT_MAX)
        return choose_scales(low, high, self._fmt, self._start.outer)

    def slopes(self, inside: Tensor, below: Tensor | None, above: Tensor | None) -> Tensor:
        """Sums over blocks [scale's shape] -> the slope of the loss over `factors`.

        inside: of gradient · (value in steps - weight in steps), the latter only where nothing
            saturates (LSQ's equation 3; Esser et al. 2020)
        below, above: of the gradients of what saturates at either end; None with one end
        """
        if self._ends is None:
            return _clamp(inside * self._step * log(2))[None]
        assert below is not None and above is not None
        low, high = self._ends
        lowest, highest = self._fmt.element.limits(self._fmt.wide)
        share = inside / (highest - lowest)
        if self._fmt.offset is not None:
            low, high = (low - high) / 2, (high - low) / 2
        ends = (below - share) * low, (above + share) * high
        return _clamp(torch.stack(ends) * log(2))


def _range_ends(start: QParams, step: Tensor, fmt: Format) -> tuple[Tensor, Tensor]:
    """The smallest and the largest value that the codes of each block can mean."""
    low, high = fmt.element.limits(fmt.wide)
    if start.offset is not None:
        offset = start.offset.to(torch.float32)
        return low * step + offset, high * step + offset
    assert start.zero_point is not None
    zero = start.zero_point.to(torch.float32)
    return (low - zero) * step, (high - zero) * step


def _clamp(slopes: Tensor) -> Tensor:
    """Slopes whose squares are finite: those of the largest floats overflow."""
    return slopes.nan_to_num(0.0).clamp(-1e15, 1e15)


class Grid(Protocol):
    """The points of one element."""

    low: float  # the smallest and the largest point
    high: float

    def round_(self, y: Tensor, shift: Tensor) -> Tensor:
        """y [...], finite, in steps, shifted by parts of the gap about it -> the nearest point.

        y's memory is used.
        """

    def gaps(self, y: Tensor) -> Tensor:
        """y [...] in steps -> the distance [...] of the points about it, or what broadcasts."""

    def codes(self, points: Tensor) -> Tensor:
        """Points [...] -> their codes [...] of the element's code_dtype."""


class Integers:
    """Codes of integers: neighbours are 1 apart."""

    def __init__(self, fmt: Format):
        self.low, self.high = fmt.element.limits(fmt.wide)
        self._dtype = fmt.element.code_dtype

    def round_(self, y: Tensor, shift: Tensor) -> Tensor:
        """As Grid."""
        return y.add_(shift).round_().clamp_(self.low, self.high)

    def gaps(self, y: Tensor) -> Tensor:
        """As Grid."""
        return y.new_ones(())

    def codes(self, points: Tensor) -> Tensor:
        """As Grid."""
        return points.to(self._dtype)


class Floats:
    """Minifloats: neighbours are a step of their binade apart."""

    def __init__(self, element: Minifloat):
        self._element = element
        self.low, self.high = -element.max, element.max
        self._lowest = 1 - element.bias  # the exponent of subnormals

    def round_(self, y: Tensor, shift: Tensor) -> Tensor:
        """As Grid."""
        y.addcmul_(self.gaps(y), shift).clamp_(self.low, self.high)
        step = self.gaps(y)
        return y.div_(step).round_().mul_(step)

    def gaps(self, y: Tensor) -> Tensor:
        """As Grid: the step of y's binade, a power of two from bits."""
        bits = y.view(torch.int32) & 0x7F800000
        bits.clamp_(min=(self._lowest + 127) << 23).sub_(self._element.mantissa_bits << 23)
        return bits.view(torch.float32)

    def codes(self, points: Tensor) -> Tensor:
        """As Grid."""
        return self._element.encode(points, nearest_even, None, False)


class TableGrid:
    """Any other element of at most 8 bits: neighbours are those of the sorted table."""

    def __init__(self, values: Tensor, codes: Tensor):
        """Values [count] float32 of codes [count]; NaN where a code means nothing."""
        is_number = values.isfinite()
        values, order = values[is_number].sort(stable=True)
        self._points, self._codes = values, codes[is_number][order]
        self._middles = (self._points[1:] + self._points[:-1]) / 2
        self._gaps = self._points[1:] - self._points[:-1]
        self._inner = self._points[1:-1].contiguous()
        self.low, self.high = float(self._points[0]), float(self._points[-1])

    def round_(self, y: Tensor, shift: Tensor) -> Tensor:
        """As Grid."""
        below = torch.bucketize(y, self._inner)
        y.addcmul_(self._gaps[below], shift)  # not beyond the two, where the next is nearer
        y = y.maximum(self._points[below]).minimum(self._points[below + 1])
        return self._points[self._place(y)]

    def gaps(self, y: Tensor) -> Tensor:
        """As Grid; beyond the ends that of the last two."""
        return self._gaps[torch.bucketize(y, self._inner)]

    def codes(self, points: Tensor) -> Tensor:
        """As Grid."""
        return self._codes[self._place(points)]

    def _place(self, y: Tensor) -> Tensor:
        return torch.bucketize(y, self._middles)


def grid_of(fmt: Format, book: Tensor | None, device: torch.device) -> Grid:
    """The grid of a format's element; book: the table of a learned codebook.

    Raises ValueError for elements of more than 8 bits that are no integers.
    """
    element = fmt.element
    if element.by_sign:
        raise ValueError(
            f"{fmt}: each block has a grid of its own, and rounding is learned on one: choose "
            "codes by 'gptq' or 'mse'"
        )
    numbers = element.numbers(fmt.wide)
    if numbers is not None and numbers.family == "integer":
        return Integers(fmt)
    if isinstance(element, Minifloat):
        return Floats(element)
    if element.bits > 8:
        raise ValueError(f"{fmt}: no table of all {2**element.bits} values of {element.name}")
    levels = element.with_book(book)
    patterns = torch.arange(2**element.bits, dtype=torch.uint8, device=device)
    codes = levels.from_bits(patterns)
    return TableGrid(levels.decode(codes), codes)
