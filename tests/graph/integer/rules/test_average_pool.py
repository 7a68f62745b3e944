# SPDX-License-Identifier: BSD-3-Clause
"""Averages on integers are sums under a smaller exponent."""

import pytest
import torch
from torch import nn

from tests.support.integer_models import (
    INT8,
    PER_CHANNEL,
    check,
    quantized,
)


def test_global_average() -> None:
    layers = (
        nn.Conv2d(2, 4, 3, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(4, 3),
    )
    x = torch.randn(2, 2, 8, 4)
    integer = check(quantized(nn.Sequential(*layers), x, PER_CHANNEL, INT8), x)
    with pytest.raises(ValueError, match=r"made for inputs of size \(8, 4\), found \(4, 8\)"):
        integer(x.transpose(2, 3))
