# SPDX-License-Identifier: BSD-3-Clause
"""Data and comparisons that the tests of blockscale.compat.torch_ao share."""

from typing import Any

import torch
from torch import Tensor

from blockscale.compat.torch_ao import (
    FakeQuantize,
    FusedMovingAvgObsFakeQuantize,
    MovingAverageMinMaxObserver,
    MovingAveragePerChannelMinMaxObserver,
)


def batches() -> list[Tensor]:
    wide = torch.tensor([[1e-9], [0.003], [1.0], [700.0]])
    return [torch.randn(4, 50) * wide, 2 * torch.randn(4, 50) * wide + 0.1]


def same(a: tuple[Tensor, Tensor], b: tuple[Tensor, Tensor]) -> None:
    for x, y in zip(a, b, strict=True):
        assert (x.dtype, x.shape) == (y.dtype, y.shape)
        assert torch.equal(x, y)


def fakes() -> list[tuple[type, dict[str, Any]]]:
    int8 = {"dtype": torch.qint8, "quant_min": -128, "quant_max": 127}
    channels = {**int8, "observer": MovingAveragePerChannelMinMaxObserver}
    return [
        (FakeQuantize, {}),
        (FakeQuantize, {**int8, "qscheme": torch.per_tensor_symmetric}),
        (FakeQuantize, {"observer": MovingAverageMinMaxObserver, "averaging_constant": 0.5}),
        (FakeQuantize, {**channels, "qscheme": torch.per_channel_symmetric, "ch_axis": 1}),
        (FusedMovingAvgObsFakeQuantize, {}),
        (FusedMovingAvgObsFakeQuantize, {**int8, "qscheme": torch.per_tensor_symmetric}),
        (FusedMovingAvgObsFakeQuantize, {**channels, "qscheme": torch.per_channel_symmetric}),
    ]
