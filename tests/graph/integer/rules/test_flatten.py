# SPDX-License-Identifier: BSD-3-Clause
"""Flattening, with a scale for each channel too."""

import pytest
import torch
from torch import Tensor, nn

from blockscale.graph.integer.convert import to_integer
from blockscale.graph.integer.layers import NotIntegerError
from tests.support.integer_models import INT8, PER_CHANNEL, check, quantized


class Flat(nn.Module):
    def __init__(self, flatten, features: int):
        super().__init__()
        self.conv, self.fc, self.flatten = nn.Conv2d(2, 4, 3), nn.Linear(features, 3), flatten
        self.conv.weight.data *= 4.0 ** torch.arange(-2, 2).reshape(4, 1, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.flatten(self.conv(x)))


@pytest.mark.parametrize(
    "flatten", [nn.Flatten(), lambda x: torch.flatten(x, 1), lambda x: x.flatten(start_dim=1)]
)
def test_scales_by_channel_lie_as_the_values_do(flatten) -> None:
    x = torch.randn(3, 2, 5, 4)
    check(quantized(Flat(flatten, 4 * 3 * 2), x, PER_CHANNEL, INT8), x)


def test_other_dimensions_need_one_scale() -> None:
    x = torch.randn(3, 2, 5, 4)
    model = quantized(Flat(nn.Flatten(2), 6), x, PER_CHANNEL, INT8)
    with pytest.raises(NotIntegerError, match="mixes channels of several scales with batches"):
        to_integer(model, x)
    check(quantized(Flat(nn.Flatten(2), 6), x, INT8, INT8), x)
