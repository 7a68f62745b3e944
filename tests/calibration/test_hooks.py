# SPDX-License-Identifier: BSD-3-Clause
"""Watching sees every call of a module, and leaves nothing."""

import pytest
import torch
from torch import Tensor, nn

from blockscale.calibration.hooks import watch


def test_watching_sees_every_call_and_leaves_nothing() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            return self.a(input=self.a(x))  # also by keyword

    model, seen = Twice(), []
    x = torch.randn(3, 4)
    with watch({model.a: lambda x, y: seen.append((x, y))}):
        y = model(x)
    assert len(seen) == 2
    assert torch.equal(seen[0][0], x)
    assert torch.equal(seen[1][0], seen[0][1])
    assert torch.equal(seen[1][1], y)
    assert not model.a._forward_hooks
    with pytest.raises(KeyboardInterrupt), watch({model.a: lambda x, y: None}):
        raise KeyboardInterrupt
    assert not model.a._forward_hooks


def test_watching_sees_what_the_layer_itself_takes_and_gives() -> None:
    """With a user's hooks: after those on its input, before those on its output."""
    layer, seen = nn.Linear(4, 4), []
    layer.register_forward_pre_hook(lambda m, args: (2 * args[0],))
    layer.register_forward_hook(lambda m, args, y: y + 100)
    x = torch.randn(3, 4)
    with watch({layer: lambda x, y: seen.append((x, y))}):
        y = layer(x)
    assert torch.equal(seen[0][0], 2 * x)
    assert torch.equal(seen[0][1] + 100, y)
