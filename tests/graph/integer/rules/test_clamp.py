# SPDX-License-Identifier: BSD-3-Clause
"""Bounds of activations on integers."""

import pytest
import torch
from torch import nn

from blockscale.graph.integer.convert import to_integer, with_integer_bias
from blockscale.graph.integer.layers import NotIntegerError
from tests.support.integer_models import (
    INT8,
    quantized,
)


@pytest.mark.parametrize("fmt", [INT8, "uint8:tensor:pow2/nearest:asym"])
def test_bounds_of_activations(fmt: str) -> None:
    """Values far beyond them, on both sides, with a zero point too."""
    for bounded in (nn.ReLU6(), nn.Hardtanh(-8, 12)):
        x = torch.randn(50, 8)
        model = quantized(nn.Sequential(nn.Linear(8, 8), bounded, nn.Linear(8, 3)), x, INT8, fmt)
        model[0].input.set_scale(
            torch.tensor([1.0]), *[torch.tensor([128], dtype=torch.int32)] * ("asym" in fmt)
        )
        x = 100 * x
        assert (model[0](x) > 12).any()
        assert (model[0](x) < -8).any()
        integer = to_integer(model, x)
        with torch.no_grad():
            assert torch.equal(integer(x), with_integer_bias(model)(x))


@pytest.mark.parametrize(
    ("bounded", "low", "high"),
    [(nn.ReLU(), 0.0, None), (nn.ReLU6(), 0.0, 6.0), (nn.Hardtanh(-8, 12), -8.0, 12.0)],
)
def test_the_bounds_themselves(bounded: nn.Module, low: float, high: float | None) -> None:
    layer = nn.Linear(1, 1, bias=False)
    nn.init.ones_(layer.weight)
    model = quantized(nn.Sequential(layer, bounded), torch.ones(1, 1), INT8, INT8)
    model[0].input.set_scale(torch.tensor([1.0]))
    below, above = to_integer(model, torch.ones(1, 1))(torch.tensor([[-100.0], [100.0]]))
    assert below.item() == low
    assert above.item() == (model[0](torch.tensor([[100.0]])).item() if high is None else high)


def test_a_bound_between_two_steps_is_refused() -> None:
    model = quantized(
        nn.Sequential(nn.Linear(4, 4), nn.Hardtanh(-0.3)), torch.ones(1, 4), INT8, INT8
    )
    with pytest.raises(
        NotIntegerError, match=r"-0.3 is not a multiple of the step .*: use a smaller"
    ):
        to_integer(model, torch.ones(1, 4))
