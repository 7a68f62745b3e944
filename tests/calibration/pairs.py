# SPDX-License-Identifier: BSD-3-Clause
"""A float model and the same one quantized."""

import copy
from typing import Any

import torch
from torch import nn

import blockscale as bs

X = [torch.randn(6, 32, generator=torch.Generator().manual_seed(i)) for i in range(3)]


def pair(recipe: Any = "int4:group8:fp32", *layers: nn.Module) -> tuple[nn.Module, nn.Module]:
    torch.manual_seed(0)
    model = nn.Sequential(*(layers or (nn.Linear(32, 16), nn.ReLU(inplace=True), nn.Linear(16, 8))))
    other = copy.deepcopy(model)
    bs.quantize_(other, recipe)
    return model, other
