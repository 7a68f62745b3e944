# SPDX-License-Identifier: BSD-3-Clause
"""Quantized nn.Linear, and the transposed Conv1D of GPT-2-style models."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear

from blockscale.core.recipe import Scheme
from blockscale.layers.layer import QLayer
from blockscale.layers.store import QWeight
from blockscale.ops.linear import linear


class QLinear(QLayer):
    """y = x @ weight.T + bias with weight [out_features, in_features]."""

    def __init__(self, weight: QWeight, bias: nn.Parameter | None, scheme: Scheme):
        super().__init__(weight, bias, scheme)
        self.out_features, self.in_features = weight.shape

    def forward(self, x: Tensor) -> Tensor:
        """x [..., in_features] -> [..., out_features]."""
        if x.shape[-1] != self.in_features:
            raise ValueError(f"expected an input [..., {self.in_features}], found {tuple(x.shape)}")
        x = self.prepared(x)
        weight: Any = self._modules["weight"]  # as an attribute it is looked for in four places
        y = linear(x, weight.operand, self.added_bias(), self.of_input(x))
        return self.finished(y)

    def extra_repr(self) -> str:
        return f"in_features={self.in_features}, out_features={self.out_features}"


class QTransposedLinear(QLinear):
    """In place of transformers' Conv1D, whose weight is [in_features, out_features].

    The codes lie as in QLinear, [out_features, in_features], so that blocks run along the sum.
    """

    layout = "transposed"

    def __init__(self, weight: QWeight, bias: nn.Parameter | None, scheme: Scheme):
        super().__init__(weight, bias, scheme)
        self.in_features, self.out_features = weight.shape
        self.nx, self.nf = weight.shape  # Conv1D's own names


class Conv1D(nn.Module):
    """What transformers calls Conv1D: y = x @ weight + bias with weight [inputs, outputs]. For
    programs, whose readers need not have transformers; the parameters are set afterwards."""

    weight: Tensor
    bias: Tensor | None

    def __init__(self, outputs: int, inputs: int):
        super().__init__()
        self.nf, self.nx = outputs, inputs
        self.register_parameter("weight", None)
        self.register_parameter("bias", None)

    def forward(self, x: Tensor) -> Tensor:
        """x [..., inputs] -> [..., outputs]."""
        rows, bias = x.reshape(-1, self.nx), self.bias
        y = rows @ self.weight if bias is None else torch.addmm(bias, rows, self.weight)
        return y.reshape(*x.shape[:-1], self.nf)

    def extra_repr(self) -> str:
        return f"nf={self.nf}, nx={self.nx}"


def _is_conv1d(kind: type) -> bool:
    """Transformers' Conv1D, without importing transformers, or the one of programs."""
    named = kind.__name__ == "Conv1D" and kind.__module__.startswith("transformers.")
    return named or kind is Conv1D


def replacement(kind: type) -> type[QLayer] | None:
    """The quantized layer for a float layer of this class."""
    if kind in (nn.Linear, NonDynamicallyQuantizableLinear):  # the latter in MultiheadAttention
        return QLinear
    return QTransposedLinear if _is_conv1d(kind) else None
