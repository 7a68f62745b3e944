"""Weights by themselves."""

import torch

from blockscale.search.alone import by_weights
from blockscale.search.candidates import read
from tests.search.models import CANDIDATES, mlp


def test_no_points_and_no_quality():
    found = by_weights(mlp(), read(CANDIDATES), ["0"])
    assert [each.name for each in found.layers] == ["2", "4"]
    assert (found.points, found.uniform, found.score) == ((), (), "sqnr")
    assert found.at(6.0).rules
    assert list(found.left) == ["0"]


def test_exact_weights_have_no_error():
    model = mlp()
    with torch.no_grad():
        model[0].weight.fill_(1.0)
    found = by_weights(model, read(["int8_channel"]), ())
    assert found.layers[0].candidates[0].sqnr > 100
