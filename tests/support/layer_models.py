# SPDX-License-Identifier: BSD-3-Clause
"""A model with every kind of layer, and equality of states to the bit."""

import torch
from torch import nn

import blockscale as bs

IDS, CHANNELS = torch.arange(15).reshape(3, 5), "int8:channel-1:fp32"


def small() -> nn.Module:
    """Every kind of layer that quantize_ knows without transformers, and some that stay."""
    layers = [nn.Embedding(40, 64), nn.Linear(64, 64), nn.LayerNorm(64), nn.ReLU(), nn.Dropout(0.2)]
    layers += [nn.Conv1d(5, 8, 3, padding=1), nn.BatchNorm1d(8), nn.Flatten(), nn.Linear(512, 3)]
    return nn.Sequential(*layers)


def bits(state) -> dict:
    """Dtype, shape and bytes by name: equality that knows NaN, -0 and uint16."""
    named = {n: t for n, t in dict(state).items() if t is not None}
    data = {n: t.detach().contiguous().reshape(-1).view(torch.uint8) for n, t in named.items()}
    return {n: (t.dtype, tuple(t.shape), data[n].tolist()) for n, t in named.items()}


def unchanged(model: nn.Module):
    state = {n: t for n, t in model.state_dict().items() if not t.is_meta}
    return [(n, id(m)) for n, m in model.named_modules()], bits(state)


def quantized(recipe="int8_channel", model: nn.Module | None = None, **settings) -> nn.Module:
    torch.manual_seed(0)
    model = model or small()
    bs.quantize_(model, recipe, **settings)
    return model
