# SPDX-License-Identifier: BSD-3-Clause
"""What the tests of several files share with
tests/layers/test_computed.py: `LAYERS`, `Noisy`, `old`, ….
"""

import warnings

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations, parametrize, prune


def old(function, *args) -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # deprecated, and in many models
        return function(nn.Linear(8, 6), *args)


def pruned(times: int = 1) -> nn.Module:
    layer = nn.Linear(8, 6)
    for _ in range(times):
        prune.l1_unstructured(layer, "weight", 0.3)
    return layer


class Doubled(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return 2 * x


class Noisy(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x + torch.randn_like(x)


def parametrized(*steps: nn.Module, name: str = "weight") -> nn.Module:
    layer = nn.Linear(8, 6)
    for step in steps:
        parametrize.register_parametrization(layer, name, step)
    return layer


LAYERS = {
    "weight_norm": lambda: parametrizations.weight_norm(nn.Linear(8, 6)),
    "spectral_norm": lambda: parametrizations.spectral_norm(nn.Linear(8, 6)),
    "orthogonal": lambda: parametrizations.orthogonal(nn.Linear(8, 6)),
    "old weight_norm": lambda: old(nn.utils.weight_norm),
    "old spectral_norm": lambda: old(nn.utils.spectral_norm),
    "pruning (L1Unstructured)": pruned,
    "pruning (L1Unstructured, L1Unstructured)": lambda: pruned(2),
    "Doubled, Doubled": lambda: parametrized(Doubled(), Doubled()),
}
