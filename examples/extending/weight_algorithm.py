# SPDX-License-Identifier: BSD-3-Clause
"""Saturate a weight's outliers, where that lowers the squared error of all the others."""

# Goes to:   blockscale/calibration/algorithms/saturate.py
# Its test:  tests/calibration/algorithms/test_saturate.py: an oracle that is not ours, and that it
#            is never worse than plain rounding by its own measure.
# By itself: its name in bs.calibrate(weight="saturate") and its notes in the ledger. A transform is
#            a class of the same folder with `prepare` in the place of `quantize`.

from typing import ClassVar

from torch import Tensor

from blockscale.calibration.algorithms.block_scales import widened
from blockscale.core.format import Format
from blockscale.ops.quantize import quantize
from blockscale.ops.tensor import QTensor


class Saturate:
    """Of the limits 1, 0.9 … 0.5 times the largest magnitude, the one with the least error."""

    name: ClassVar[str] = "saturate"
    needs_gram: ClassVar[bool] = False

    def quantize(
        self, weight: Tensor, fmt: Format, gram: Tensor | None, layer: str
    ) -> tuple[QTensor, list[str]]:
        """As `WeightAlgorithm.quantize`."""
        del gram
        x = widened(weight, fmt, layer)  # refuses what no algorithm can serve
        tried = []
        for tenths in range(10, 4, -1):
            limit = float(x.abs().max()) * tenths / 10
            q = quantize(x.clamp(-limit, limit), fmt)
            error = float((q.dequantize().double() - x.double()).square().sum())
            tried.append((error, q))
        return min(tried, key=lambda each: each[0])[1], []
