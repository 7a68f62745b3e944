# SPDX-License-Identifier: BSD-3-Clause
"""Sums of two values."""

import operator

import pytest
import torch
from torch import Tensor, nn

from blockscale.graph.integer.convert import to_integer
from blockscale.graph.integer.layers import NotIntegerError
from tests.support.integer_models import INT8, PER_CHANNEL, check, quantized


class Sum(nn.Module):
    """Two layers of one input, whose outputs have other scales, added."""

    def __init__(self, add, factor: float = 16.0):
        super().__init__()
        self.a, self.b, self.add = nn.Linear(6, 4), nn.Linear(6, 4), add
        self.b.weight.data *= factor

    def forward(self, x: Tensor) -> Tensor:
        return self.add(self.a(x), self.b(x))


@pytest.mark.some(4)
@pytest.mark.parametrize("fmt", [INT8, "uint8:tensor:pow2/nearest:asym"])
@pytest.mark.parametrize("outputs", [False, True])
@pytest.mark.parametrize(
    "add", [operator.add, operator.iadd, torch.add, lambda x, y: x.add(y), lambda x, y: x.add_(y)]
)
def test_every_spelling(add, outputs: bool, fmt: str) -> None:
    x = torch.randn(5, 6)
    model = quantized(Sum(add), x, PER_CHANNEL, fmt, fmt if outputs else None)
    integer = check(model, x)
    names = [each.name for each in integer.sums]
    assert names[:2] == ["a", "b"]
    assert len(names) == 3
    if not outputs:  # both in steps of the smaller scale
        a, b, both = (each.largest for each in integer.sums)
        assert both >= a + b


def test_by_hand() -> None:
    """Codes up to 127 under 2^-1 and 2^-3: (127 << 2) + 127 steps of 2^-3."""
    model = quantized(Sum(operator.add, 1.0), torch.randn(5, 6), PER_CHANNEL, INT8, INT8)
    model.a.output.set_scale(torch.tensor([0.5]))
    model.b.output.set_scale(torch.tensor([0.125]))
    integer = to_integer(model, torch.randn(5, 6))
    assert integer.sums[2].largest == (127 << 2) + 127


def test_scales_too_far_apart_are_refused() -> None:
    x = torch.randn(5, 6)
    model = quantized(Sum(operator.add, 2.0**20), x, INT8, INT8)
    model.b.weight.scale.mul_(2.0**20)
    with pytest.raises(NotIntegerError, match=r"scales differ by over 2\^31|more than int32"):
        to_integer(model, x)
