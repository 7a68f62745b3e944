# SPDX-License-Identifier: BSD-3-Clause
"""The mean that is the scale of binary and ternary numbers."""

from typing import ClassVar

import torch
from torch import Tensor

from blockscale.calibration.observer import Observer, is_mean
from blockscale.core import reference
from blockscale.core.format import Format


class Mean(Observer):
    """For binary and ternary: the mean of each batch's own scale, weighted by its finite elements.

    So binary gets the mean magnitude of everything (XNOR-Net, section 3.1). The sums are float64,
    so another order of batches may change the last bit of a scale.

    Raises ValueError for elements whose scale comes from a range.
    """

    name: ClassVar[str] = "mean"
    means: ClassVar[bool] = True
    merges_exactly: ClassVar[bool] = False

    total: Tensor

    def __init__(self, fmt: str | Format):
        super().__init__(fmt)
        if not is_mean(self.format):
            raise ValueError(
                f"{self.fmt}: the observer 'mean' is for elements whose scale is a mean, and "
                "this scale comes from a range: use another observer"
            )
        self._statistic("total", "sum", dtype=torch.float64)

    def _update(
        self, x: Tensor, low: Tensor, high: Tensor, finite: Tensor | None, weight: Tensor | None
    ) -> None:
        super()._update(x, low, high, finite, weight)
        count = x.numel() if finite is None else int(finite.sum())
        values = x if finite is None else torch.where(finite, x, torch.nan)
        self.total += reference.ranges(values, self.format).high.double() * count

    def _choose(self) -> tuple[Tensor, Tensor]:
        mean = (self.total / self.finite).float()
        return -mean, mean
