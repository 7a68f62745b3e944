# SPDX-License-Identifier: BSD-3-Clause
"""Biases in training: through the codes that the quantized layer will have."""

from collections.abc import Callable, Collection, Iterable
from dataclasses import replace

import torch
from torch import Tensor, nn

from blockscale.core.arithmetic.sums import SumInteger
from blockscale.core.recipe import BiasFormat
from blockscale.layers.bias import without_dynamic
from blockscale.layers.plan import Decision, Plan
from blockscale.layers.reasons import why_not_bias
from blockscale.ops.quantize import fake_quantize


class BiasQuantizer(nn.Module):
    """A bias through its format. It holds no state.

    seed: for formats that round stochastically: of evaluation and of the quantized model. Training
        draws a new one at each call, from torch's default generator.
    """

    def __init__(self, fmt: BiasFormat, seed: int):
        super().__init__()
        self.format, self.seed = fmt, seed

    def forward(self, bias: Tensor, steps: Callable[[], Tensor], *, fixed: bool = False) -> Tensor:
        """bias [n] -> its values in the format, float32. Its gradient is straight-through, 0 where
        it saturates.

        steps: gives the steps of the layer's sums [n], if the format counts in them
        fixed: draw no numbers, but take those of evaluation
        """
        wide = bias.to(torch.float32)
        if isinstance(self.format, SumInteger):
            return _straight_through(wide, self.format, steps().detach())
        stochastic = self.format.rounding == "stochastic"
        new = stochastic and self.training and not fixed
        return fake_quantize(wide, self.format, seed=None if new else self.seed)

    def extra_repr(self) -> str:
        return f"'{self.format}'"


def _straight_through(bias: Tensor, kind: SumInteger, steps: Tensor) -> Tensor:
    """bias [n], steps [n] float32 -> values [n], with the gradient of bias where it is in range."""
    known = bias.detach()
    values = kind.decode(kind.encode(known, steps), steps)
    path = bias - known  # zeros, but a way back to bias; NaN where bias is not finite
    return values + torch.where(kind.in_range(known, steps), path, 0.0)


def settled(
    decisions: Iterable[Decision], folded: Collection[str], static: Callable[[Plan], bool]
) -> list[Decision]:
    """The decisions, where what becomes of biases is known, too.

    folded: names of convolutions that get a bias, because a batch norm is folded into them
    static: whether a layer's input has a static scale
    """
    known = [
        _with_a_bias(each) if isinstance(each, Plan) and each.name in folded else each
        for each in decisions
    ]
    return without_dynamic(known, static)


def _with_a_bias(plan: Plan) -> Plan:
    bias = torch.empty(plan.stored[0], device="meta")
    return replace(plan, gets_bias=True, bias_left=why_not_bias(bias, plan.scheme, plan.stored))
