# SPDX-License-Identifier: BSD-3-Clause
"""How far numbers are from what they should be, added up piece by piece in float64."""

import math
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from blockscale.calibration.algorithms.block_scales import block_sums, whole_blocks
from blockscale.core import reference
from blockscale.core.format import Format
from blockscale.core.reference import QParams
from blockscale.ops.tensor import QTensor

_PIECE = 1 << 22  # elements that are float64 at one time
WORST = 3


@dataclass(frozen=True)
class Deviation:
    """Of b against a, what it should be, over all elements that are finite in both.

    sqnr: 10 log10 (sum a² / sum (a - b)²) in dB; infinite where they are equal
    max_error: the largest |a - b|
    cosine: sum a b / sqrt(sum a² sum b²); 1 where both are 0
    odd: elements of which one is NaN or infinite, and the other is not the same
    elements: how many were compared
    """

    sqnr: float
    max_error: float
    cosine: float
    odd: int
    elements: int

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON, which has no infinity: null."""
        return asdict(self) | {"sqnr": self.sqnr if math.isfinite(self.sqnr) else None}


@dataclass(frozen=True)
class Place:
    """A block or a channel: where, and the root mean square of the errors in it."""

    index: tuple[int, ...]
    rms_error: float


@dataclass(frozen=True)
class Rounding(Deviation):
    """What a format does to a weight or to inputs.

    saturated: percent of the elements that are beyond the largest code
    underflowed: percent of those that are not 0, but become 0
    worst: the places with the largest errors, worst first: blocks of a weight (their index in its
        scale), channels of inputs
    hidden_nans, hidden_infinities: how many elements were so, and came out finite; they are among
        the `odd` ones
    """

    saturated: float
    underflowed: float
    worst: tuple[Place, ...] = ()
    hidden_nans: int = 0
    hidden_infinities: int = 0


class Sums:
    """Adds up a Deviation; constant memory."""

    def __init__(self) -> None:
        self._signal = self._noise = self._product = self._other = self._largest = 0.0
        self._odd = self.elements = 0

    def add(self, a: Tensor, b: Tensor) -> None:
        """a and b [...] of one shape, b being what should be a."""
        pieces = (side.detach().flatten().split(_PIECE) for side in (a, b.to(a.device)))
        for x, y in zip(*pieces, strict=True):
            self._add(x.double(), y.double())

    def _add(self, x: Tensor, y: Tensor) -> None:
        finite = x.isfinite() & y.isfinite()
        same = (x == y) | (x.isnan() & y.isnan())
        self._odd += int((~finite & ~same).sum())
        x, y = torch.where(finite, x, 0.0), torch.where(finite, y, 0.0)
        error = x - y
        self._signal += float(x.square().sum())
        self._other += float(y.square().sum())
        self._product += float((x * y).sum())
        self._noise += float(error.square().sum())
        self._largest = max(self._largest, float(error.abs().amax()) if x.numel() else 0.0)
        self.elements += x.numel()

    def result(self) -> Deviation:
        """The Deviation of all that was added."""
        sqnr = math.inf
        if self._noise > 0:
            sqnr = 10 * math.log10(self._signal / self._noise) if self._signal > 0 else -math.inf
        size = math.sqrt(self._signal) * math.sqrt(self._other)
        cosine = self._product / size if size > 0 else float(self._signal == self._other)
        return Deviation(sqnr, self._largest, cosine, self._odd, self.elements)


class RoundingSums(Sums):
    """Adds up a Rounding of tensors whose last dimension has `channels`."""

    def __init__(self, fmt: Format):
        super().__init__()
        self.format = fmt
        self._saturated = self._underflows = self._nonzero = 0
        self._nans = self._infinities = 0  # that came out finite
        self._squares = torch.zeros(())  # per place
        self._counts = torch.zeros(())

    def count(self, x: Tensor, rounded: Tensor, qparams: QParams) -> None:
        """x [...] -> rounded [...] in the format, with these scales."""
        self.add(x, rounded)
        self._saturated += int((~reference.in_range(x, qparams, self.format)).sum())
        self._underflows += int(((x != 0) & (rounded == 0)).sum())
        self._nonzero += int((x != 0).sum())
        finite = rounded.isfinite()
        self._nans += int((x.isnan() & finite).sum())
        self._infinities += int((x.isinf() & finite).sum())

    def places(self, squares: Tensor, counts: Tensor) -> None:
        """Squared errors and elements of each place, added to those so far."""
        self._squares = self._squares.to(squares.device) + squares
        self._counts = self._counts.to(counts.device) + counts

    def rounding(self) -> Rounding:
        """The Rounding of all that was added."""
        whole, nonzero = max(self.elements, 1), max(self._nonzero, 1)
        share = 100 * self._saturated / whole, 100 * self._underflows / nonzero
        return Rounding(
            **vars(self.result()), saturated=share[0], underflowed=share[1], worst=self._worst(),
            hidden_nans=self._nans, hidden_infinities=self._infinities,
        )  # fmt: skip

    def _worst(self) -> tuple[Place, ...]:
        mean = (self._squares / self._counts.clamp(min=1)).sqrt()
        largest = mean.flatten().topk(min(WORST, mean.numel()))
        pairs = zip(largest.indices.tolist(), largest.values.tolist(), strict=True)
        return tuple(
            Place(tuple(int(i) for i in torch.unravel_index(torch.tensor(at), mean.shape)), value)
            for at, value in pairs
            if value > 0
        )


def add_weight(sums: RoundingSums, x: Tensor, q: QTensor) -> None:
    """A weight [n, k] and its codes, in parts of whole blocks."""
    rounded, fmt = q.dequantize(), q.format
    sums.count(x, rounded, q.qparams)
    squares = x.new_zeros(fmt.block.scale_shape(x.shape), dtype=torch.float64)
    counts = torch.zeros_like(squares)
    for of_weight, of_scale in whole_blocks((x.shape[0], x.shape[1]), fmt.block):
        squared = _squared(x[of_weight], rounded[of_weight])
        squares[of_scale] = block_sums(squared, fmt.block)
        counts[of_scale] = block_sums(torch.ones_like(squared), fmt.block)
    sums.places(squares, counts)


def add_input(sums: RoundingSums, x: Tensor, rounded: Tensor, qparams: QParams) -> None:
    """Inputs [..., k] and what their format leaves of them: a channel is a place."""
    sums.count(x, rounded, qparams)
    squared = _squared(x, rounded).flatten(0, -2)
    sums.places(squared.sum(0), squared.new_full(squared.shape[1:], squared.shape[0]))


def _squared(x: Tensor, rounded: Tensor) -> Tensor:
    finite = x.isfinite() & rounded.isfinite()
    return torch.where(finite, x.double() - rounded.double(), 0.0).square()
