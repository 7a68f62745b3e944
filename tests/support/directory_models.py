# SPDX-License-Identifier: BSD-3-Clause
"""What the tests of several files share with
tests/files/directory/test_computed.py: `several`, `trained`.
"""

from collections.abc import Callable

import torch
from torch import nn
from torch.nn.utils import parametrizations

Build = Callable[[], nn.Module]


new = parametrizations.weight_norm


def several() -> nn.Module:
    """Every way to norm, every dimension, several layouts, one that is as wide as high."""
    return nn.Sequential(
        new(nn.Linear(32, 48)), new(nn.Linear(48, 32), dim=None), new(nn.Linear(32, 32), dim=1),
        new(nn.Conv1d(8, 32, 40, groups=1)), new(nn.Conv1d(32, 32, 3), dim=2),
        new(nn.ConvTranspose1d(32, 16, 4)), new(nn.Conv2d(16, 32, 3), dim=1),
        parametrizations.spectral_norm(nn.Linear(32, 64)),
        parametrizations.spectral_norm(nn.Conv2d(32, 32, 3)),
        parametrizations.spectral_norm(nn.ConvTranspose2d(32, 16, 3)),
    )  # fmt: skip


def trained(build: Build, dtype: torch.dtype) -> nn.Module:
    torch.manual_seed(0)
    model = build().eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():  # lengths that are not the norm of v
            parameter.mul_(torch.rand_like(parameter) + (0.5 if "0" in name else 0.75))
    return model.to(dtype)
