# SPDX-License-Identifier: BSD-3-Clause
"""Convolutions in training, alone."""

import pytest
import torch
from torch import nn

import blockscale as bs


@pytest.mark.parametrize(
    "make",
    [
        lambda: nn.Conv1d(8, 8, 3, padding="same", groups=2),
        lambda: nn.Conv1d(8, 8, 3, padding=2, dilation=2, padding_mode="replicate"),
        lambda: nn.Conv2d(4, 6, (3, 2), stride=(2, 1), padding=(1, 0), padding_mode="circular"),
        lambda: nn.Conv2d(4, 8, 3, groups=4, bias=False),
        lambda: nn.Conv3d(4, 6, (3, 2, 1), stride=(2, 1, 1), padding=(1, 0, 2)),
        lambda: nn.Conv3d(4, 6, 3, padding="same", padding_mode="circular", groups=2),
    ],
)
@pytest.mark.parametrize("single", [False, True])
def test_convolutions_of_every_sort(make, single):
    model = nn.Sequential(make())
    like = model[0]
    bs.prepare_qat(model, bs.Recipe("int8_channel", "int8", "int8"), observer="min_max")
    x = torch.randn([2] * (not single) + [like.in_channels] + [9] * (like.weight.ndim - 2))
    model(x)
    model.eval()
    with bs.use("reference"):
        simulated = model(x).detach()
        bs.convert(model)
        assert torch.equal(model(x), simulated)
