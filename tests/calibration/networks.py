# SPDX-License-Identifier: BSD-3-Clause
"""A model with every kind of layer, its batches, and what its layers see of them."""

import warnings
from typing import Any

import torch
from torch import Tensor, nn

import blockscale as bs
from blockscale.calibration.calibrate import calibrate

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # deprecations inside, while it is imported
    from transformers.pytorch_utils import Conv1D


CHANNEL = "int8:channel-1:fp32"


STATIC = bs.Recipe("int8_channel", input="int8", output=CHANNEL)


class Net(nn.Module):
    """Every kind of layer, one of them called twice, and a branch that only `deep` reaches."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(10, 6)
        self.conv = nn.Conv1d(6, 4, 3, padding=1)
        self.norm = nn.BatchNorm1d(4)
        self.twice = nn.Linear(4, 4)
        self.gpt = Conv1D(3, 4)
        self.dead = nn.Linear(4, 4)

    def forward(self, ids: Tensor, deep: bool = False) -> Tensor:
        x = self.norm(self.conv(self.table(ids).movedim(1, -1))).movedim(1, -1)
        x = self.twice(torch.relu(self.twice(x)))
        return self.gpt(self.dead(x) if deep else x)


def net() -> Net:
    torch.manual_seed(0)
    return Net()


def ids(*sizes: int) -> list[Tensor]:
    torch.manual_seed(1)
    return [torch.randint(10, (size, 5)) for size in sizes]


def deep(batches: list[Tensor]) -> list[dict[str, Any]]:
    return [{"ids": each, "deep": True} for each in batches]


def quietly(model: nn.Module, batches: Any, recipe: Any = STATIC, *rest: Any, **more: Any) -> Any:
    return calibrate(model, batches, recipe, *rest, **{"progress": False} | more)


def state_of(model: nn.Module) -> tuple[Any, ...]:
    """All that a failure must leave alone: modules, tensors, modes, hooks, gradients."""
    tensors = [(n, id(t), t.detach().clone()) for n, t in model.state_dict(keep_vars=True).items()]
    modules = [
        (n, id(m), m.training, len(m._forward_hooks), len(m._forward_pre_hooks))
        for n, m in model.named_modules()
    ]
    return modules, [(n, i, t.tolist()) for n, i, t in tensors]
