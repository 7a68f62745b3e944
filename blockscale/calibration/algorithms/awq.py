# SPDX-License-Identifier: BSD-3-Clause
"""AWQ: keep precise the weights that meet large inputs, by scaling them up before rounding."""

from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

from blockscale.calibration.algorithms.hessian import OutputError
from blockscale.calibration.algorithms.smoothquant import balance, divided_by
from blockscale.core.format import Format
from blockscale.layers.before import Before

if TYPE_CHECKING:
    from blockscale.calibration.input_stats import InputStats


class AWQ:
    """Divides feature j of the input by s_j, and multiplies its weights by it. Two kinds of s_j are
    tried with each alpha of 0, 1/grid, 2/grid ...:

        mean|x_j|^alpha                            Lin et al. 2023, arXiv 2306.00978, section 3.2
        mean|x_j|^alpha / mean|w_j|^(1 - alpha)    after AutoAWQ's "duo scaling"

    The one with the least error of the layer's output on its sample is taken, through the layer's
    own formats. Among them is s = 1, so no layer gets worse there. As in the paper's code, s is
    divided by the geometric mean of its extremes. AutoAWQ's mean|w_j| is relative to the largest of
    each group; this one is not, so that it needs no groups. The paper's search for clipped ranges
    is a weight algorithm here: `weight="mse"`. Features whose input or weight is 0 are left alone.

    grid: how many alphas, 20 in the paper's code
    pow2: round each s_j to a power of two, so that scaling is exact

    Raises ValueError for a grid that is not a whole number of at least 2.
    """

    name: ClassVar[str] = "awq"
    needs_gram: ClassVar[bool] = False

    def __init__(self, grid: float = 20, *, pow2: bool = False):
        if not isinstance(grid, float | int) or grid < 2 or grid != int(grid):
            raise ValueError(f"grid must be an integer >= 2, got {grid!r}")
        self.grid, self.pow2 = int(grid), pow2

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
        of_input = stats.mean_abs.to(torch.float32).reshape(-1, error.features).mean(0)
        of_weight = error.weight.abs().reshape(-1, error.features).mean(0)
        alive, candidates = (of_input > 0) & (of_weight > 0), []
        for step in range(self.grid):
            alpha = step / self.grid
            large = of_input.pow(alpha)
            both = {"alpha": large, "duo alpha": large / of_weight.pow(1 - alpha)}
            for kind, s in both.items():
                scale = divided_by(balance(torch.where(alive, s, 0.0)), pow2=self.pow2)
                candidates.append((f"{kind} {alpha:g}", scale))
        return error.best(candidates)
