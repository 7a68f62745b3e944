# SPDX-License-Identifier: BSD-3-Clause
"""The range that holds a given percentage of the values."""

from typing import ClassVar

import torch
from torch import Tensor

from blockscale.calibration.histogram import Bins, KeptValues
from blockscale.core.format import Format


class Percentile(KeptValues):
    """Clips what lies outside `percentile` % of the values.

    For symmetric formats it is the percentile of |x|; for unsigned elements without a zero point
    that of x; with a zero point (asym) or an offset half of what is clipped is at either end.

    Up to 65536 finite elements it is exact, numpy.percentile's linear interpolation. Beyond that it
    is read from a histogram: off by at most a bin, 2^-8 of the value or 2^-15 of the largest.

    Raises ValueError unless 0 < percentile <= 100.
    """

    name: ClassVar[str] = "percentile"
    setting: ClassVar[str] = "percentile"
    means: ClassVar[bool] = False

    def __init__(self, fmt: str | Format, percentile: float = 99.99):
        super().__init__(fmt)
        if not 0 < percentile <= 100:
            raise ValueError(f"percentile must be above 0 and at most 100, got {percentile}")
        self.percentile = percentile

    def _choose(self) -> tuple[Tensor, Tensor]:
        tail = (100.0 - self.percentile) / 100.0
        if self._bare:
            return self._quantile(tail / 2), self._quantile(1 - tail / 2)
        if self.format.asym:
            return self._quantile(tail / 2).clamp(max=0.0), self._quantile(1 - tail / 2).clamp(0.0)
        if not self.format.element.signed:
            return self.low, self._quantile(1 - tail).clamp(min=0.0)
        threshold = self._quantile(1 - tail, signed=False)
        return torch.maximum(self.low, -threshold), torch.minimum(self.high, threshold)

    def _quantile(self, q: float, signed: bool = True) -> Tensor:
        """The q-quantile of x or |x| in each block [scale's shape]; 0 where it saw nothing."""
        quantile = self._of_kept(q, signed) if self.exact else self._of_bins(q, signed)
        return quantile.float().reshape(self.low.shape)

    def _of_kept(self, q: float, signed: bool) -> Tensor:
        values = (self.kept if signed else self.kept.abs()).double()
        values, order = values.sort()
        values = values[self.owner[order].argsort(stable=True)]  # by block, each in order
        counts = torch.bincount(self.owner, minlength=self.low.numel())
        rank = q * (counts - 1).clamp(min=0).double()
        start = counts.cumsum(0) - counts
        last = max(len(values) - 1, 0)
        below = (start + rank.floor().long()).clamp(max=last)
        above = (start + rank.ceil().long()).clamp(max=last)
        between = torch.lerp(values[below], values[above], rank - rank.floor())
        return torch.where(counts > 0, between, 0.0)

    def _of_bins(self, q: float, signed: bool) -> Tensor:
        bins = self.bins(signed)
        total = bins.mass.cumsum(-1)
        last = (total[:, -1:] - 1).clamp(min=0)
        below, above = (_at_rank(bins, total, r) for r in ((q * last).floor(), (q * last).ceil()))
        return torch.lerp(below, above, (q * last).frac())


def _at_rank(bins: Bins, total: Tensor, rank: Tensor) -> Tensor:
    """The values of rank 0 ... n - 1 in each block [blocks, 1] float64, as if even in their bin."""
    place = torch.searchsorted(total, rank, right=True).clamp(max=total.shape[-1] - 1)
    count = bins.mass.gather(-1, place).clamp(min=1)
    inside = (rank - total.gather(-1, place) + 0.5) / count + 0.5  # -1/2 ... 1/2
    value = bins.clip(bins.value.gather(-1, place) + inside * bins.width.gather(-1, place))
    value = torch.where(rank <= 0, bins.low, value)  # the ends are known
    return torch.where(rank >= total[:, -1:] - 1, bins.high, value)
