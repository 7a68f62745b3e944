# SPDX-License-Identifier: BSD-3-Clause
"""Plain rounding by search: scales by their errors' cost, then codes and scales together.

The search feeds nothing back from column to column. Where the inputs' gram matrix is known, the
error that counts is that of the layer's output, and coordinate descent lowers it from plain
rounding on.
"""

from typing import ClassVar

from torch import Tensor

from blockscale.calibration.algorithms import hessian as grams
from blockscale.calibration.algorithms.block_scales import best_scales, quantized, widened
from blockscale.calibration.algorithms.columns import Columns
from blockscale.calibration.algorithms.descent import descend
from blockscale.core.format import Format
from blockscale.core.reference import QParams
from blockscale.ops.batching import in_blocks_of, within_rows
from blockscale.ops.quantize import quantize
from blockscale.ops.tensor import QTensor

_DAMPING = 0.01  # of the mean of H's diagonal, as GPTQ's default


class Search:
    """The scales of least error among many, and codes that make up for one another.

    weighting: "gram": each column's errors count by the mean square of its input, and then, by
        coordinate descent, as the gram matrix says; "none" looks at the weight alone.
    power: errors count |e|^power while scales are searched: 2, or 1 for the least absolute error.
    sweeps: how often all codes and scales are chosen again, each under all the others; 0 leaves
        every weight rounded to nearest.

    Candidates are those of "mse"; with `signed`, both signs. With "gram" and sweeps, the error of
    the layer's output is never above that of these scales alone, nor of what `bs.quantize` does.
    Flat blocks that end within rows, whose columns share scales, are searched without descent.
    """

    name: ClassVar[str] = "search"

    def __init__(self, weighting: str = "gram", *, power: float = 2.0, sweeps: int = 4):
        grams.check_weighting("search", weighting)
        if not (isinstance(power, int | float) and power > 0):
            raise ValueError(
                f"search: power (errors count as |e|^power) must be > 0, got {power!r}"
            )
        if sweeps < 0:
            raise ValueError(f"search: sweeps must be >= 0, got {sweeps}")
        self.weighting, self.power, self.sweeps = weighting, power, sweeps

    @property
    def needs_gram(self) -> bool:
        """Whether errors count by what the inputs are."""
        return self.weighting == "gram"

    def quantize(
        self, weight: Tensor, fmt: Format, gram: Tensor | None, layer: str
    ) -> tuple[QTensor, list[str]]:
        """As `WeightAlgorithm.quantize`."""
        x = widened(weight, fmt, layer)
        rows = within_rows(fmt, x.shape)
        importance: Tensor | None = None
        notes: list[str] = []
        gram = None if gram is None or not self.needs_gram else gram.to(x.device)
        if self.needs_gram:
            importance, notes = grams.importance_of(gram, x.shape[1], layer)
        qparams = best_scales(x, rows, importance, self.power)
        if gram is None or importance is None or not self.sweeps or rows.block.flat:
            result = quantized(x, qparams, rows)
        else:
            h, _ = grams.without_dead(grams.check_gram(gram, x.shape[1], layer))
            result = self._descend(x, rows, qparams, h)
        if rows is fmt:
            return result, notes
        parts = in_blocks_of(result.qparams, fmt, x.shape)
        return QTensor(result.packed, parts, fmt, result.size), notes

    def _descend(self, x: Tensor, fmt: Format, qparams: QParams, h: Tensor) -> QTensor:
        """What coordinate descent makes of plain rounding under these scales."""
        target = x.T.double().contiguous()
        columns = Columns([x], fmt, None)
        columns.take(qparams)
        columns.round(0, slice(None), target)
        damping = _DAMPING * float(h.diagonal().mean())
        (rest,) = descend(columns, [target], [h], self.sweeps, damping=[damping])
        plain = quantize(x, fmt)
        away = target - plain.dequantize().T
        if ((target - columns.values) * rest).sum() > (away * (h @ away)).sum():
            return plain
        return columns.result()
