# SPDX-License-Identifier: BSD-3-Clause
"""SmoothQuant: move what is hard to quantize from a layer's input to its weight."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

from blockscale.calibration.algorithms.hessian import OutputError
from blockscale.core.format import Format
from blockscale.core.integer_scales import round_to_power_of_2
from blockscale.layers.before import Before, Scale

if TYPE_CHECKING:
    from blockscale.calibration.input_stats import InputStats

LIMIT = 2.0**40  # factors stay within 1 / LIMIT ... LIMIT: nothing overflows in float32


class SmoothQuant:
    """Divides feature j of the input by s_j = max|x_j|^alpha / max|w_j|^(1 - alpha).

    Xiao et al. 2022, arXiv 2211.10438, equation 4; alpha in 0 ... 1, where 1 moves all of the
    outliers into the weight. Of several alphas the one with the least error of the layer's output
    on its sample is taken, and none where all of them would make that error larger. Features whose
    input or weight is 0 are left alone, which the paper does not speak of.

    pow2: round each s_j to a power of two, so that scaling is exact.

    Raises ValueError for an alpha outside 0 ... 1.
    """

    name: ClassVar[str] = "smoothquant"
    needs_gram: ClassVar[bool] = False

    def __init__(self, alpha: float | Sequence[float] = 0.5, *, pow2: bool = False):
        self.alphas = tuple(alpha) if isinstance(alpha, Sequence) else (alpha,)
        if not self.alphas or not all(
            isinstance(a, float | int) and 0 <= a <= 1 for a in self.alphas
        ):
            raise ValueError(
                f"alpha must be a number from 0 to 1, or a list of them, got {alpha!r}"
            )
        self.pow2 = pow2

    def prepare(
        self,
        weight: Tensor,
        fmt: Format,
        input_fmt: Format | None,
        stats: "InputStats",
        layer: str,
    ) -> tuple[Before | None, list[str]]:
        """Weight [n, k] and what is known of its inputs -> a Scale or None, and what was done.

        Raises ValueError for statistics of another number of inputs.
        """
        error = OutputError(weight, fmt, input_fmt, stats, layer)
        if input_fmt is None:
            return None, ["not smoothed: its input is not quantized"]
        of_input = stats.amax.to(torch.float32).reshape(-1, error.features).amax(0)
        of_weight = error.weight.abs().reshape(-1, error.features).amax(0)
        alive, candidates = (of_input > 0) & (of_weight > 0), []
        for alpha in self.alphas:
            s = torch.where(alive, of_input.pow(alpha) / of_weight.pow(1 - alpha), 0.0)
            candidates.append((f"alpha {alpha:g}", divided_by(s, pow2=self.pow2)))
        return error.best(candidates)


def divided_by(s: Tensor, *, pow2: bool) -> Scale:
    """The Scale whose inputs are divided by s [features] float32; by 1 where s is 0 or not finite.

    pow2: by the nearest power of two, the next one above the square root of 2.
    """
    usable = (s > 0) & s.isfinite()
    s = torch.where(usable, s.clamp(1 / LIMIT, LIMIT), 1.0)
    return Scale((round_to_power_of_2(s) if pow2 else s).reciprocal())


def balance(s: Tensor) -> Tensor:
    """s [features] -> s over the geometric mean of its extremes, so that weights keep their size.

    Zeros stay 0, and do not count.
    """
    positive = s[s > 0]
    if positive.numel() == 0:
        return s
    return s / math.sqrt(float(positive.max()) * float(positive.min()))
