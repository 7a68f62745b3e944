# SPDX-License-Identifier: BSD-3-Clause
"""What the tests of several files share with
tests/layers/test_bias.py: `calibrated`, `expected`, `IMAGES`, ….
"""

from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

import blockscale as bs
from tests.support.arithmetic_sums import code_of
from tests.support.exact import multiply, nearest
from tests.support.qat_models import Conv1D

INT8, CHANNEL = "int8:tensor:fp32", "int8:channel0:fp32"


STATIC = bs.Recipe(CHANNEL, INT8, bias="int32")


def mlp(sizes: tuple[int, ...] = (24, 16, 6)) -> nn.Sequential:
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for k, n in pairwise(sizes):
        layers += [nn.Linear(k, n), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def network() -> nn.Sequential:
    """Every kind of layer with a bias, small, as torchvision's nets are built."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(8, 8, 3, groups=8, bias=False),
        nn.Flatten(2),
        nn.Conv1d(8, 6, 2, stride=2),
        nn.Flatten(),
        Conv1D(10, 12),
        nn.Linear(10, 4),
    )


IMAGES = torch.randn(4, 3, 8, 8, generator=torch.Generator().manual_seed(1))


ROWS = torch.randn(32, 24, generator=torch.Generator().manual_seed(2))


def calibrated(model: nn.Module, x: Tensor, recipe: Any = STATIC, **more: Any) -> Any:
    bs.calibrate(model.eval(), [x], recipe, progress=False, **more)
    return model


def expected(layer: Any, bias: Tensor, bits: int = 32) -> tuple[list[int], list[float]]:
    """Codes and values by rationals, from the layer's stored scales; no output is all zeros."""
    taken = layer.input.scale.item()
    weight = layer.weight.scale.reshape(-1).expand(len(bias)).tolist()
    steps = [multiply(taken, w) for w in weight]
    largest = 2 ** (bits - 1) - 1
    codes = [code_of(b, s, largest) for b, s in zip(bias.tolist(), steps, strict=True)]
    return codes, [multiply(nearest(c), s) for c, s in zip(codes, steps, strict=True)]
