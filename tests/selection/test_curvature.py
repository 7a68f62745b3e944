# SPDX-License-Identifier: BSD-3-Clause
"""The diagonal against gradients that are taken one by one."""

import pytest
import torch
from torch import nn

from blockscale.selection.candidates import read
from blockscale.selection.choices import choices
from blockscale.selection.curvature import Curvature
from blockscale.selection.objective import objective
from tests.selection.models import Tied, batches, mlp


def test_squared_gradients_of_a_loss():
    model, given = mlp(), batches()
    found, _ = choices(model, read(["mxfp4"]))
    what = objective(lambda out, batch: out.square().sum())
    curvature = Curvature(model, found)
    for batch in given:
        curvature.add(batch, what, torch.Generator())
    expected = torch.zeros(8, 32)
    for batch in given:
        model.zero_grad()
        model(*batch).square().sum().backward()
        expected += model[2].weight.grad.square()
    model.zero_grad()
    rounded = model[2].weight.detach() + 0.5
    damage = float((expected.double() / 2).sum()) * 0.25
    assert curvature.damage(1, rounded) == pytest.approx(damage, rel=1e-5)
    assert curvature.damage(0, model[0].weight) == 0
    assert all(p.grad is None for p in model.parameters())


def test_a_shared_weight_gets_the_gradient_of_all_its_uses():
    model, ids = Tied(), torch.tensor([[1, 2, 3]])
    found, _ = choices(model, read(["mxfp4"]))
    curvature = Curvature(model, found)
    curvature.add((ids,), objective(lambda out, batch: out.sum()), torch.Generator())
    model(ids).sum().backward()
    expected = float(model.table.weight.grad.double().square().sum())
    assert curvature.damage(0, model.table.weight.detach() + 1) == pytest.approx(expected, rel=1e-4)


def test_damage_of_a_linear_layer_is_its_outputs_error():
    """With one output row of one element, E[n²] x² / y² is all there is: many probes agree."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 1, bias=False))
    x = torch.randn(1, 8)
    found, _ = choices(model, read(["int4:group8:fp32"]))
    curvature = Curvature(model, found)
    generator = torch.Generator().manual_seed(0)
    for _ in range(100):
        curvature.add((x,), objective("distance"), generator)
    step = torch.zeros(1, 8)
    step[0, 3] = 0.01
    y = model(x).detach()
    expected = float((step @ x.T / y).square())
    found_damage = curvature.damage(0, model[0].weight.detach() + step)
    assert expected * 0.8 < found_damage < expected * 1.2


def test_a_model_without_gradients():
    class Steps(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(8, 8)

        def forward(self, x):
            return self.layer(x).sign().detach()

    model = Steps()
    found, _ = choices(model, read(["mxfp4"]))
    with pytest.raises(ValueError, match="no gradients, so score='fisher' cannot work: use"):
        Curvature(model, found).add((torch.ones(1, 8),), objective("distance"), torch.Generator())
