# SPDX-License-Identifier: BSD-3-Clause
"""The experts of a mixture as a server calls them: tokens, and for each its experts and their
weights. Nothing of this file knows a server."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from blockscale.layers.store import QWeight
from blockscale.layers.weight_pieces import sorted_product


class ExpertMatrices(nn.Module):
    """A matrix for each expert: one stack [E, n, k], or a layer for each as a file holds them."""

    def __init__(self, stack: QWeight | None, layers: Sequence[Any] = ()):
        super().__init__()
        self.stack = stack
        self.layers = nn.ModuleList(layers)
        self.sizes: list[int] = layers[0].sizes if layers else []

    def forward(self, x: Tensor, ends: Tensor) -> Tensor:
        """x [rows, k], sorted by expert, those of e ending before row `ends[e]` -> [rows, n].
        Rows after the last end belong to no expert here and give 0."""
        if self.stack is not None:
            y = sorted_product(x, self.stack.operand, ends, self.stack.rows)
            if y is None:  # checked when it was read
                raise ValueError(f"{self.stack.name}: experts share numbers of {self.stack.fmt}")
            return y
        start, pieces = 0, []
        for layer, end in zip(self.layers, ends.tolist(), strict=True):
            if end > start:
                pieces.append(layer(x[start:end]))
                start = end
        if start < len(x):
            outputs = sum(self.sizes)
            pieces.append(x.new_zeros(len(x) - start, outputs))
        return torch.cat(pieces)


class Biases(NamedTuple):
    """Of experts: up [experts, outputs of gate and up], down [experts, k]."""

    up: Tensor
    down: Tensor


def check_biases(layer: str, activation: str, processes: int) -> None:
    """Raise ValueError where the experts of `layer` have biases and cannot be served with them.

    activation: as the server calls it; processes: how many have a part of the model
    """
    if activation != "swigluoai":
        raise ValueError(
            f"{layer}: its experts have biases, which are served with gpt-oss's activation "
            f"(swigluoai), and these have {activation}: keep them in float"
        )
    if processes > 1:
        raise ValueError(
            f"{layer}: its experts have biases (gpt-oss), which one process serves whole, and "
            f"tensor_parallel_size is {processes}: set tensor_parallel_size=1"
        )


def _plus(y: Tensor, bias: Tensor, experts: Tensor) -> Tensor:
    """y [rows, n] and the bias of each row's expert; rows after the last expert's stay."""
    own = F.pad(bias, (0, 0, 0, 1))[experts]  # a row of zeros for experts elsewhere
    return y + own.to(y.dtype)


class Experts(nn.Module):
    """up: of gate and up, joined in this order; down: the way back."""

    def __init__(self, up: ExpertMatrices, down: ExpertMatrices, count: int):
        super().__init__()
        self.up, self.down, self.count = up, down, count

    def forward(
        self,
        x: Tensor,
        weights: Tensor,
        ids: Tensor,
        activation: Callable[[Tensor], Tensor],
        weigh_inputs: bool = False,
        biases: Biases | None = None,
    ) -> Tensor:
        """x [tokens, k], weights and ids [tokens, experts of each] -> [tokens, k].

        ids: -1 where the expert is in another process, which adds its part
        activation: gate and up [rows, 2 n] -> [rows, n]
        weigh_inputs: whether weights multiply what goes into the experts instead of what comes out
        biases: of gpt-oss's experts
        """
        tokens, each = ids.shape
        if not tokens:
            return torch.zeros_like(x)
        flat = ids.reshape(-1).long()
        flat = torch.where(flat < 0, self.count, flat)
        order = flat.argsort(stable=True)
        counts = flat.bincount(minlength=self.count + 1)[: self.count]
        ends = counts.cumsum(0)
        rows, scale = x[order // each], weights.reshape(-1, 1)[order].to(x.dtype)
        rows = rows * scale if weigh_inputs else rows
        own = flat[order]
        y = self.up(rows, ends)
        y = y if biases is None else _plus(y, biases.up, own)
        y = self.down(activation(y), ends)
        y = y if biases is None else _plus(y, biases.down, own)
        y = y if weigh_inputs else y * scale
        back = torch.empty_like(order)
        back[order] = torch.arange(len(order), device=order.device)
        return y[back].reshape(tokens, each, -1).sum(1).to(x.dtype)


def clamped_swiglu(y: Tensor, alpha: float = 1.702, limit: float = 7.0) -> Tensor:
    """gpt-oss's activation: gate and up [rows, 2 n], one beside the other in turn -> [rows, n].

    The gate is at most `limit`, up is within +-limit, and 1 is added to it.
    """
    gate, up = y[..., ::2].clamp(max=limit), y[..., 1::2].clamp(-limit, limit)
    return (up + 1) * (gate * torch.sigmoid(gate * alpha))
