# SPDX-License-Identifier: BSD-3-Clause
"""Every value as it is while there are few of them, and their histogram when there are more."""

from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from blockscale.calibration import candidate_ranges
from blockscale.calibration.histogram import Histogram
from blockscale.core.format import Format

CAPACITY = 2**16  # elements that are kept as they are


class Points(NamedTuple):
    """Values of each block [blocks, n] float32, and how many elements each stands for, float64."""

    value: Tensor
    mass: Tensor

    def mean_squared_error(self, low: Tensor, high: Tensor, fmt: Format) -> float:
        """What a format under this range [scale's shape] does to them, all blocks together."""
        left = candidate_ranges.round_trips(self.value, low[None], high[None], fmt)[0]
        error = (left.double() - self.value).square_().mul_(self.mass).sum()
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
        order = self.owner.argsort(stable=True)
        start = counts.cumsum(0) - counts
        owner = self.owner[order].long()
        column = torch.arange(len(order), device=order.device) - start[owner]
        value = self.kept.new_zeros(self.low.numel(), max(int(counts.max()), 1))
        mass = torch.zeros_like(value, dtype=torch.float64)
        value[owner, column] = self.kept[order]
        mass[owner, column] = 1.0
        return Points(value, mass)
