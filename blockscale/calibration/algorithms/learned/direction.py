# SPDX-License-Identifier: BSD-3-Clause
"""Where one step of the descent goes: not by the gradient's sign, by its mean over the last steps.

SignRound moves every offset by the same rate, whatever the size of its gradient (Cheng et al. 2023,
arXiv 2309.05516, section 3.2). Here the gradients of the last steps are averaged (heavy ball,
Polyak 1964) and divided by their root mean square over the tensor: offsets that hardly matter
stay, instead of walking at random.
"""

import torch
from torch import Tensor

_KEPT = 0.9  # of the mean at each step
_LEAST = 1e-30  # so that gradients of 0 give 0


class Direction:
    """The mean of the gradients that one tensor has had."""

    def __init__(self) -> None:
        self._mean: Tensor | None = None

    def move(self, x: Tensor, gradient: Tensor, rate: float, end: float) -> None:
        """x -= rate · mean / its root mean square, and not beyond -end … end; in place."""
        if self._mean is None:
            self._mean = torch.zeros_like(gradient)
        self._mean.lerp_(gradient, 1 - _KEPT)
        size = self._mean.square().mean().sqrt().clamp_(min=_LEAST)
        x.addcdiv_(self._mean, size, value=-rate).clamp_(-end, end)
