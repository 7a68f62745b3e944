# SPDX-License-Identifier: BSD-3-Clause
"""The smallest and the largest value that were seen, or moving averages of each batch's."""

from typing import ClassVar

import torch
from torch import Tensor

from blockscale.calibration.observer import Observer, is_mean
from blockscale.core import reference
from blockscale.core.format import Format


class MinMax(Observer):
    """The range of everything that was seen: nothing saturates, and one outlier sets the scale."""

    name: ClassVar[str] = "min_max"


class MovingAverage(Observer):
    """low += constant * (batch's low - low), and high in the same way; the first batch in
    which a block has a range sets them.

    As torch.ao's MovingAverageMinMaxObserver, with its default constant. For binary and ternary
    elements it is the batch's mean that is averaged.

    It depends on the order of batches, so there is no merging as if one had seen both: merged low
    and high are the means of the two, weighted by the finite elements that each has seen.

    Raises ValueError unless 0 < constant <= 1.
    """

    name: ClassVar[str] = "moving_average"
    setting: ClassVar[str] = "constant"
    means: ClassVar[bool] = True
    merges_exactly: ClassVar[bool] = False

    def __init__(self, fmt: str | Format, constant: float = 0.01):
        super().__init__(fmt)
        self._merges |= {"low": "sum", "high": "sum"}  # of totals: see _parts
        self._empty = {}
        if not 0 < constant <= 1:
            raise ValueError(f"constant must be above 0 and at most 1, got {constant}")
        self.constant = constant

    def _update(
        self, x: Tensor, low: Tensor, high: Tensor, finite: Tensor | None, weight: Tensor | None
    ) -> None:
        del weight
        if finite is not None and not bool(finite.any()):
            return  # its range 0 ... 0 says nothing
        if is_mean(self.format):
            low, high, _ = reference.ranges(
                x if finite is None else torch.where(finite, x, torch.nan), self.format
            )
        none = low > high  # with an offset, blocks without a finite value
        low, high = low.masked_fill(none, 0.0), high.masked_fill(none, 0.0)
        # lerp is exact at its ends, so that constant batches leave it alone
        first = (self.low == 0) & (self.high == 0)  # nothing but zeros was seen in these blocks
        self.low = torch.where(first, low, torch.lerp(self.low, low, self.constant))
        self.high = torch.where(first, high, torch.lerp(self.high, high, self.constant))

    def _parts(self) -> dict[str, Tensor]:
        parts = super()._parts()
        return parts | {name: parts[name].double() * self.finite for name in ("low", "high")}

    def _take(self, merged: dict[str, Tensor]) -> None:
        super()._take(merged)
        for name in ("low", "high"):
            self._buffers[name] = (merged[name] / max(self.finite, 1)).float()
