# SPDX-License-Identifier: BSD-3-Clause
"""One weight whose rounding is learned: an offset for each element, a factor for each range.

AdaRound learns whether each weight goes up or down (Nagel et al. 2020, arXiv 2004.10568, section
3.2); SignRound adds an offset V in [-1/2, 1/2] of a step before rounding, learns it together with
factors of the range's ends, and passes gradients straight through (Cheng et al. 2023, arXiv
2309.05516, section 3). Here a step is the distance of the two numbers beside the weight, of
whatever element; offsets begin at the codes of another algorithm; and factors move the scale that
is stored, so that of powers of two they move exponents.
"""

from math import prod
from typing import NamedTuple

import torch
from torch import Tensor

from blockscale.calibration.algorithms.block_scales import block_sums, spread_outer
from blockscale.calibration.algorithms.learned.grids import BlockRanges, grid_of
from blockscale.core import reference
from blockscale.core.block import WHOLE, Block
from blockscale.ops import primitives
from blockscale.ops.tensor import QTensor

# A weight seen so that its blocks' scales broadcast, without a copy of them for each element.


class Cells:
    """Views of tensors of one shape, in which one number per block broadcasts.

    Where blocks divide the shape, dimension i becomes [blocks, size], and scales get dimensions of
    one; else the view is the tensor itself, and scales are repeated.
    """

    def __init__(self, shape: tuple[int, ...], block: Block):
        self.shape, self.block = shape, block
        self.scale_shape = block.scale_shape(shape)
        self._view, self._expanded_shape, self._dims = _split(shape, block)

    def view(self, x: Tensor) -> Tensor:
        """x [shape], contiguous -> the view."""
        return x.reshape(self._view)

    def plain(self, x: Tensor) -> Tensor:
        """A view -> [shape]."""
        return x.reshape(self.shape)

    def expand(self, scale: Tensor) -> Tensor:
        """One number per block [scale's shape] -> what broadcasts to the view."""
        return (
            scale.reshape(self._expanded_shape)
            if self._dims
            else self.block.expand(scale, self.shape)
        )

    def sums(self, x: Tensor) -> Tensor:
        """A view -> its sum over each block [scale's shape]."""
        if not self._dims:
            return block_sums(x, self.block) if x.ndim == 2 else self._summed(x)
        return x.sum(self._dims).reshape(self.scale_shape)

    def _summed(self, x: Tensor) -> Tensor:
        places = torch.arange(prod(self.scale_shape), device=x.device).reshape(self.scale_shape)
        at = self.block.expand(places, self.shape).expand(self.shape)
        sums = x.new_zeros(prod(self.scale_shape)).index_add_(0, at.reshape(-1), x.reshape(-1))
        return sums.reshape(self.scale_shape)


def _split(
    shape: tuple[int, ...], block: Block
) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """The view's shape, that of scales in it, and which of its dimensions run inside of blocks.

    No such dimensions: blocks do not divide the shape.
    """
    if block.flat:
        if prod(shape) % block.flat:
            return shape, (), ()
        count = prod(shape) // block.flat
        if block.strided:
            return (block.flat, count), (1, count), (0,)
        return (count, block.flat), (count, 1), (1,)
    sizes = [
        n if s == WHOLE else s for n, s in zip(shape, block.sizes_for(len(shape)), strict=True)
    ]
    if any(size == 0 or n % size for n, size in zip(shape, sizes, strict=True)):
        return shape, (), ()
    view: list[int] = []
    scales: list[int] = []
    for n, size in zip(shape, sizes, strict=True):
        view += [n // size, size]
        scales += [n // size, 1]
    return tuple(view), tuple(scales), tuple(range(1, 2 * len(shape), 2))


# Where one step of the descent goes: not by the gradient's sign, by its mean over the last steps.
#
# SignRound moves every offset by the same rate, whatever the size of its gradient (Cheng et al.
# 2023,
# arXiv 2309.05516, section 3.2). Here the gradients of the last steps are averaged (heavy ball,
# Polyak 1964) and divided by their root mean square over the tensor: offsets that hardly matter
# stay, instead of walking at random.

_KEPT = 0.9  # of the mean at each step
_LEAST = 1e-30  # so that gradients of 0 give 0


class Direction:
    """The mean of the gradients that one tensor has had."""

    def __init__(self) -> None:
        self._mean: Tensor | None = None

    def move(self, x: Tensor, gradient: Tensor, rate: float, end: float) -> None:
        """x -= rate · mean / its root mean square, and not beyond -end … end; in place."""
        if self._mean is None:
            self._mean = torch.zeros_like(gradient)
        self._mean.lerp_(gradient, 1 - _KEPT)
        size = self._mean.square().mean().sqrt().clamp_(min=_LEAST)
        x.addcdiv_(self._mean, size, value=-rate).clamp_(-end, end)


_INSIDE = 0.49  # gaps: as far as a weight may lie from the code it begins with


class LearningRates(NamedTuple):
    """How far a step moves what is learned: offsets in gaps, factors in octaves, tables in gaps."""

    offsets: float
    factors: float
    tables: float


State = tuple[Tensor, ...]  # a copy of what is learned


class LearnedWeight:
    """A weight in a format that begins with given codes.

    value: what its codes mean now [shape] float32; `step` learns from its gradient
    """

    def __init__(self, weight: Tensor, start: QTensor, inside: float = _INSIDE):
        """Weight [shape] float32. One that is further from the start's codes than `inside` gaps is
        drawn to these, up to there: below 1/2, so that rounding finds the start's codes."""
        fmt = self._fmt = start.format
        self._single, outer = spread_outer(start.qparams, fmt)
        book, self._outer = start.qparams.book, start.qparams.outer
        self._book = None if book is None else book.clone()
        self._cells = Cells(tuple(weight.shape), fmt.block)
        self._grid = grid_of(fmt, self._book, weight.device)
        self._ranges = BlockRanges(self._single, start.qparams._replace(book=None), outer)
        self._qparams = self._ranges.qparams()
        self._weight = self._near(
            self._cells.view(weight), self._cells.view(start.dequantize()), inside
        )
        self._offsets = torch.zeros_like(self._weight)
        self._of_offsets, self._of_factors, self._of_book = Direction(), Direction(), Direction()
        self.value = torch.empty_like(weight).requires_grad_()
        self.refresh()

    @torch.no_grad()
    def refresh(self) -> None:
        """Let `value` be what is learned so far."""
        self._qparams = self._ranges.qparams()
        zero, step, offset = self._expand_qparams()
        points = self._grid.round_(self._in_steps(self._weight), self._offsets)
        value = (points if zero is None else points.sub_(zero)).mul_(step)
        self.value.copy_(self._cells.plain(value if offset is None else value.add_(offset)))

    @torch.no_grad()
    def step(self, rates: LearningRates) -> None:
        """Move what is learned against its gradient; then `refresh`. The gradient is taken away."""
        assert self.value.grad is not None
        gradient, step = self._cells.view(self.value.grad), self._expand_qparams()[1]
        if rates.factors:
            slopes = self._slopes(gradient, step)
            self._of_factors.move(self._ranges.factors, slopes, rates.factors, 1.0)
            self._ranges.has_factors = True
        if self._book is not None and rates.tables:
            self._move_book(self._book, gradient * step, rates.tables)
        if self._fmt.span == "signed":
            gradient = gradient * step.sign()
        self._of_offsets.move(self._offsets, gradient, rates.offsets, 0.5)
        self.value.grad = None
        self.refresh()

    def state(self) -> State:
        """A copy of what is learned."""
        book = () if self._book is None else (self._book.clone(),)
        return self._offsets.clone(), self._ranges.factors.clone(), *book

    def restore(self, state: State) -> None:
        """Go back to what `state` gave."""
        self._offsets.copy_(state[0])
        self._ranges.factors.copy_(state[1])
        self._ranges.has_factors = bool(state[1].any())
        if self._book is not None:
            self._book = state[2].clone()
            self._grid = grid_of(self._fmt, self._book, self._book.device)
        self.refresh()

    @torch.no_grad()
    def result(self) -> QTensor:
        """The codes, which decode to `value` bit for bit."""
        points = self._grid.round_(self._in_steps(self._weight), self._offsets)
        codes = self._cells.plain(self._grid.codes(points)).contiguous()
        packed = primitives.pack(codes, str(self._fmt))
        qparams = self._qparams._replace(outer=self._outer, book=self._book)
        return QTensor(packed, qparams, self._fmt, codes.shape[-1])

    def _near(self, weight: Tensor, start: Tensor, inside: float) -> Tensor:
        """The weight, no further from the start's values than so many gaps."""
        y, point = self._in_steps(weight), self._in_steps(start)
        away = y - point
        gap = self._grid.gaps(point + away * 2.0**-10)  # of the side that the weight lies on
        far = away.abs() > gap * inside
        zero, step, offset = self._expand_qparams()
        near = point + away.sign() * (gap * inside)
        near = (near if zero is None else near - zero) * step
        return torch.where(far, near if offset is None else near + offset, weight)

    def _expand_qparams(self) -> tuple[Tensor | None, Tensor, Tensor | None]:
        """Zero points, steps and offsets, as they broadcast to the view."""
        q, expand = self._qparams, self._cells.expand
        zero = None if q.zero_point is None else expand(q.zero_point.to(torch.float32))
        step = expand(reference.step_of(q, self._single))
        return zero, step, None if q.offset is None else expand(q.offset.to(torch.float32))

    def _in_steps(self, values: Tensor) -> Tensor:
        """Values (a view) in steps, with the zero point: new memory."""
        zero, step, offset = self._expand_qparams()
        y = values / step if offset is None else (values - offset).div_(step)
        return y if zero is None else y.add_(zero)

    def _slopes(self, gradient: Tensor, step: Tensor) -> Tensor:
        """Of the loss over the factors of ranges."""
        sums = self._cells.sums
        y = self._in_steps(self._weight)
        below, above = y <= self._grid.low, y >= self._grid.high
        beyond = below | above
        if self._ranges.two_ends:
            away = self._in_steps(self._cells.view(self.value.detach())).sub_(y)
            inside = sums(away.masked_fill_(beyond, 0.0).mul_(gradient))
            low, high = (sums(torch.where(end, gradient, 0.0)) for end in (below, above))
            return self._ranges.slopes(inside, low, high)
        away = self._cells.view(self.value.detach()) / step
        away.sub_(y.masked_fill_(beyond, 0.0))
        return self._ranges.slopes(sums(away.mul_(gradient)), None, None)

    def _move_book(self, book: Tensor, gradient: Tensor, rate: float) -> None:
        """A learned codebook's values, each by the sum of what its elements ask for."""
        points = self._grid.round_(self._in_steps(self._weight), self._offsets)
        codes = self._grid.codes(points).reshape(-1).to(torch.int64)
        slopes = torch.zeros_like(book).index_add_(0, codes, gradient.reshape(-1))
        gap = (book.max() - book.min()) / max(len(book) - 1, 1)
        self._of_book.move(book, slopes, rate * float(gap), float("inf"))
        self._grid = grid_of(self._fmt, book, book.device)
