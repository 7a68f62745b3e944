# SPDX-License-Identifier: BSD-3-Clause
"""HQQ: refine scales and zero points against the weight alone, forgiving its outliers.

Badri and Shaji: "Half-quadratic quantization of large machine learning models", Mobius Labs, 2023
(mobiusml.github.io/hqq_blog). The error is measured by its p-th power, p < 1, and split in two:
what is set aside as an outlier (a shrinkage) and what the scale must fit (a closed form), in turns.
"""

from typing import ClassVar

import torch
from torch import Tensor

from blockscale.calibration.algorithms.block_scales import (
    block_sums,
    in_steps,
    nearest_scale,
    plain_scales,
    quantized,
    round_trip,
    search_by_parts,
    select,
    widened,
)
from blockscale.core import reference
from blockscale.core.arithmetic.precision import FLT_MAX
from blockscale.core.format import Format
from blockscale.core.reference import QParams
from blockscale.core.scale import FloatScale
from blockscale.ops.tensor import QTensor


class HQQ:
    """Half-quadratic refinement; it needs no data.

    p, beta, growth, steps: as in the source's code, 0.7, 10, 1.01 and 20: errors count |e|^p, beta
        weighs the quadratic part and grows in each step; it stops where no block gets better.

    It differs from the source so that any format can have it. There, zero points are floats and
    the scale stays what the range gives; here, zero points are the format's integers, and the
    scale has a closed form too, stored as the format stores it. Errors are counted in steps of
    their block, so that beta means the same for every block; there they are raw, and at beta 10
    hardly any error of a trained weight is above the shrinkage's threshold, which leaves a mean.
    The best of all steps is kept, block by block, beginning with what `bs.quantize` chooses: no
    block gets worse in sum |e|^p.

    It finds the minimum near that beginning, which is as well: the least sum |e|^p is reached by
    clipping far more than is good for the model (docs/algorithms.md). A power-of-two scale seldom
    reaches its neighbour, and stays.
    """

    name: ClassVar[str] = "hqq"
    needs_gram = False

    def __init__(
        self, p: float = 0.7, *, beta: float = 10.0, growth: float = 1.01, steps: int = 20
    ):
        if not (isinstance(p, int | float) and 0 < p < 1):
            raise ValueError(
                f"hqq: p (errors count as |e|^p) must be above 0 and below 1, got {p!r}"
            )
        if not beta > 0 or not growth >= 1 or steps < 1:
            raise ValueError(
                f"hqq: beta must be > 0, growth >= 1 and steps >= 1, got {beta}, {growth}, {steps}"
            )
        self.p, self.beta, self.growth, self.steps = p, beta, growth, steps

    def quantize(
        self, weight: Tensor, fmt: Format, gram: Tensor | None, layer: str
    ) -> tuple[QTensor, list[str]]:
        """As `WeightAlgorithm.quantize`; `gram` is not looked at."""
        del gram
        x = widened(weight, fmt, layer)
        return quantized(x, search_by_parts(x, fmt, self._refine), fmt), []

    def _refine(self, x: Tensor, fmt: Format, outer: Tensor | None, columns: slice) -> QParams:
        """x [n, k] -> for each block the best of all steps."""
        del columns
        now = best = plain_scales(x, fmt, outer)
        error = least = self.error(x, best, fmt)
        beta = self.beta
        for _ in range(self.steps):
            now, before = self._step(x, now, fmt, beta), error
            error = self.error(x, now, fmt)
            best, least = select(error < least, now, best), torch.minimum(error, least)
            if not bool((error < before).any()):
                break
            beta *= self.growth
        return best

    def error(self, x: Tensor, qparams: QParams, fmt: Format) -> Tensor:
        """The sum of |e|^p of each block, float64."""
        error = (round_trip(x, qparams, fmt) - x).abs_().pow_(self.p)
        return block_sums(error.double(), fmt.block)

    def _step(self, x: Tensor, now: QParams, fmt: Format, beta: float) -> QParams:
        """Set outliers aside, then fit the scale and the zero point to the rest in closed form."""
        step = reference.step_of(now, fmt)
        v = in_steps(round_trip(x, now, fmt), now, fmt)  # code - zero point
        t = in_steps(x, now, fmt)
        rest = t - shrink(t - v, self.p, beta)
        of_rest, of_v = (block_sums(v * each, fmt.block) for each in (rest, v))
        ratio = torch.where((of_v > 0) & (of_rest > 0), of_rest / of_v, 1.0)
        target = (step * ratio).clamp(max=FLT_MAX)
        new = now._replace(scale=nearest_scale(target, now.outer, fmt))
        if now.zero_point is None and now.offset is None:
            return new
        ratio = reference.step_of(new, fmt) / step
        count = block_sums(torch.ones_like(v), fmt.block)
        mean = block_sums(v - rest / fmt.block.expand(ratio, x.shape), fmt.block) / count
        mean = mean.nan_to_num(0.0)
        if fmt.offset is not None and now.offset is not None:
            assert isinstance(fmt.offset.type, FloatScale)  # `widened` refuses others
            offset = now.offset.to(torch.float32) - mean * step * ratio
            return new._replace(offset=fmt.offset.type.store_any(offset))
        assert now.zero_point is not None
        if fmt.zero is not None:
            return new._replace(zero_point=fmt.zero.store_any(now.zero_point.float() + mean))
        zero = (now.zero_point + mean.round()).clamp(*fmt.element.limits(fmt.wide))
        return new._replace(zero_point=zero.to(torch.int32))


def shrink(e: Tensor, p: float, beta: float) -> Tensor:
    """argmin over w of |w|^p + beta/2 (w - e)^2, approximately: the generalized soft threshold.

    sign(e) · max(|e| - |e|^(p-1) / beta, 0) (Chartrand 2012; the source's eq. for W_e)."""
    size = e.abs()
    threshold = torch.where(size > 0, size.pow(p - 1) / beta, 0.0)
    return e.sign() * (size - threshold).clamp(min=0.0)
