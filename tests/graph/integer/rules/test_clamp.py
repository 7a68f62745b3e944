"""Bounds of activations on integers."""

import pytest
import torch
from torch import nn

from blockscale.graph.integer.convert import to_integer, with_integer_bias
from tests.graph.integer.models import (
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
