"""The steps of an integer model."""

from fractions import Fraction

import torch
from torch import nn

import blockscale as bs
from blockscale.graph.integer.convert import to_integer
from tests.graph.integer.models import (
    INT8,
)


def test_ties() -> None:
    """Sums that end half way between two codes, of both parities and signs: half to even."""
    layer = nn.Linear(1, 1)
    with torch.no_grad():
        layer.weight.fill_(1.0)
        layer.bias.fill_(0.5)
    model = nn.Sequential(layer)
    bs.quantize_(model, bs.Recipe("int8:tensor:pow2/ceil", INT8, INT8))
    model[0].input.set_scale(torch.tensor([0.25]))
    model[0].output.set_scale(torch.tensor([1.0]))
    x = torch.arange(-31, 31).reshape(-1, 1) / 4
    found = to_integer(model, x)(x)
    assert torch.equal(found, model(x))
    assert found.flatten().tolist() == [
        float(round(Fraction(v) + Fraction(1, 2))) for v in x.flatten().tolist()
    ]
    assert ((x + 0.5).frac().abs() == 0.5).sum() == 15  # the ties
