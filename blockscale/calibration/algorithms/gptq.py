# SPDX-License-Identifier: BSD-3-Clause
"""GPTQ: column after column is rounded, and the columns to come make up for the error.

Frantar, Ashkboos, Hoefler, Alistarh: "GPTQ: accurate post-training quantization for generative
pre-trained transformers", ICLR 2023 (arXiv 2210.17323), algorithm 1, sections 3.2 and 3.3. Here any
format will do: what shares a scale is the format's block.
"""

from typing import ClassVar

import torch
from torch import Tensor

from blockscale.calibration.algorithms import hessian as grams
from blockscale.calibration.algorithms.block_scales import (
    widened,
)
from blockscale.calibration.algorithms.mse import MSE
from blockscale.calibration.algorithms.search import (
    Columns,
    backwards_factor,
    descend,
    feed_back,
    inverse_factor,
    without_dead,
)
from blockscale.core.format import Format
from blockscale.ops.batching import in_blocks_of, within_rows
from blockscale.ops.quantize import quantize
from blockscale.ops.tensor import QTensor

_HALF = 0.5
_NO_DRIFT = (
    "asymmetric has no effect: the inputs of the float model were not collected "
    "(bs.calibrate does so unless sequential=False)"
)
_COARSE = 4  # of the factors tried for a scale, where sweeps fit it again: a third of the time


class GPTQ:
    """Error feedback under the gram matrix H of the layer's inputs, and then coordinate descent.

    scales: how a block's scale is chosen: "absmax", or "mse" as the algorithm of that name does,
        weighted by what an error still costs after later columns have made up for it, 1 / U_jj^2
        (the paper's eq. 2). It is chosen when the first of the block's columns is reached, from
        weights that already make up for earlier errors.
    damping: what is added to H's diagonal, in parts of its mean. Where H still has no Cholesky
        factor it is raised tenfold until it has one, and a note says so.
    act_order: columns with large inputs first (the paper's code calls it so). Codes and scales stay
        in the weight's order.
    static: choose all scales from the weight as it was given.
    sweeps: how often all codes and scales are chosen again afterwards, each under all the others
        (blockscale.calibration.algorithms.search); the paper has none of it. With "absmax" the
        scales stay as they are.
    asymmetric: make up for what the quantized layers before changed in this layer's input, too: the
        output is to be that of the float model's input (GPTAQ, Li et al. 2025, arXiv 2504.02692,
        eq. 3). `bs.calibrate` runs the float model beside the one that is quantized so far for it.
        It needs the drift Xq^T (Xf - Xq) / rows. The paper corrects each column's residual
        on the way; here the weight is moved first towards where that output is nearest, half the
        way for True, or by the part that is given: all of it fits the calibration data too well.
    batch: columns whose errors are handed on together (section 3.3, step 2); only speed depends on
        it.

    All arithmetic on H and on the weights in progress is float64: errors add up over thousands of
    columns, and the factor of an ill-conditioned H loses half its digits. Rounding itself is that
    of the format, in float32. If plain rounding has the lower error tr((W - Q) H (W - Q)^T) it is
    kept, and a note says so: error feedback looks at one column at a time and can lose.
    """

    name: ClassVar[str] = "gptq"
    needs_gram = True

    def __init__(  # noqa: PLR0913 - each is a choice of its own
        self,
        scales: str = "mse",
        *,
        damping: float = 0.01,
        act_order: bool = True,
        static: bool = False,
        sweeps: int = 4,
        asymmetric: bool | float = False,
        batch: int = 64,
    ):
        if scales not in ("absmax", "mse"):
            raise ValueError(f"gptq: scales must be 'absmax' or 'mse', got {scales!r}")
        if not damping >= 0:
            raise ValueError(
                "gptq: damping (a fraction of the Hessian's mean diagonal) must be >= 0, got "
                f"{damping}"
            )
        if batch < 1:
            raise ValueError(f"gptq: batch (columns rounded at a time) must be >= 1, got {batch}")
        if sweeps < 0:
            raise ValueError(f"gptq: sweeps must be >= 0, got {sweeps}")
        self.scales, self.damping, self.batch = scales, damping, batch
        self.act_order, self.static, self.sweeps = act_order, static, sweeps
        self.asymmetric = _HALF if asymmetric is True else float(asymmetric)
        if not 0 <= self.asymmetric <= 1:
            raise ValueError(
                f"gptq: asymmetric must be True, False or a number from 0 to 1, got {asymmetric!r}"
            )

    @property
    def needs_drift(self) -> bool:
        """Whether `quantize` should be given the drift of the layer's inputs."""
        return self.asymmetric > 0

    def quantize(
        self,
        weight: Tensor,
        fmt: Format,
        gram: Tensor | None,
        layer: str,
        *,
        drift: Tensor | None = None,
    ) -> tuple[QTensor, list[str]]:
        """As `WeightAlgorithm.quantize`; without a gram matrix nothing is fed back, with a note.

        drift: Xq^T (Xf - Xq) / rows [k, k] of the layer's inputs Xq, of which `gram` is, and its
            inputs Xf in the float model; looked at if `asymmetric`
        """
        x = widened(weight, fmt, layer)
        if fmt.block.flat:
            return self._quantize_flat(x, fmt, gram, layer, drift)
        if gram is None:
            alone = (
                quantize(x, fmt)
                if self.scales == "absmax"
                else MSE().quantize(x, fmt, None, layer)[0]
            )
            return alone, ["no data about its inputs: every column is rounded by itself"]
        h, dead = without_dead(grams.checked(gram.to(x.device), x.shape[1], layer))
        notes = []
        if dead:
            notes = [
                f"{dead} of {len(h)} inputs were always 0: their columns are rounded to nearest"
            ]
        target, missing = self._target(x, h, drift, layer)
        result, more = self._chosen(x, target, fmt, h, layer)
        return result, notes + missing + more

    def _quantize_flat(
        self, x: Tensor, fmt: Format, gram: Tensor | None, layer: str, drift: Tensor | None
    ) -> tuple[QTensor, list[str]]:
        """The same in blocks over the flattened weight, where rows hold them whole."""
        rows = within_rows(fmt, x.shape)
        if rows.block.flat:
            raise ValueError(
                f"{layer}: {fmt}: its flat blocks end in the middle of rows of {x.shape[1]} "
                "columns, and gptq rounds column by column: use 'mse', or a format with "
                "groupN blocks"
            )
        q, notes = self.quantize(x, rows, gram, layer, drift=drift)
        return QTensor(q.packed, in_blocks_of(q.qparams, fmt, x.shape), fmt, q.size), notes

    def _target(
        self, x: Tensor, h: Tensor, drift: Tensor | None, layer: str
    ) -> tuple[Tensor, list[str]]:
        """What the values should be [k, n] float64, and notes."""
        target = x.T.double().contiguous()
        if not self.asymmetric:
            return target, []
        if drift is None:
            return target, [_NO_DRIFT]
        drift = self.asymmetric * grams.checked_drift(drift, h, layer)
        return shifted(target, h, drift, self.damping, layer), []

    def _chosen(
        self, x: Tensor, target: Tensor, fmt: Format, h: Tensor, layer: str
    ) -> tuple[QTensor, list[str]]:
        """Codes for a weight x [n, k] whose values should be `target`, and notes."""
        order = torch.arange(len(h), device=h.device)
        if self.act_order:
            order = h.diagonal().argsort(descending=True, stable=True)
        factor, damping = inverse_factor(h[order][:, order], self.damping, layer)
        notes = []
        if damping > self.damping:
            notes.append(f"H has no Cholesky factor: damping raised to {damping:g}")
        importance = None
        if self.scales != "absmax":
            importance = factor.diagonal().pow(-2)[order.argsort()]
        columns = Columns(x, fmt, importance, spacing=_COARSE if self.sweeps else 1)
        if self.static:
            columns.choose_all(target.T.float().contiguous())
        feed_back(columns, target, factor, order, self.batch)
        rest = descend(columns, target, h, self.sweeps, fit=self.scales != "absmax")
        plain = quantize(x, fmt)
        away = target - plain.dequantize().T
        if ((target - columns.values) * rest).sum() > (away * (h @ away)).sum():
            return plain, [*notes, "error feedback did not lower the error: rounded to nearest"]
        return columns.finished(), notes


def shifted(target: Tensor, h: Tensor, drift: Tensor, damping: float, layer: str) -> Tensor:
    """Weights [k, n] for inputs Xf -> those that give nearest to the same outputs for inputs Xq.

    h, drift: Xq^T Xq and Xq^T (Xf - Xq), both by rows [k, k] float64. The least squares solution
    of Xq T = Xf W is W + H^-1 drift W; H is damped here, too.
    """
    r, _ = backwards_factor(h, damping, layer)
    moved = torch.linalg.solve_triangular(r, drift @ target, upper=True)
    return target + torch.linalg.solve_triangular(r.T, moved, upper=False)
