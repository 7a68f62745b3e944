# SPDX-License-Identifier: BSD-3-Clause
"""Damage and quality against numpy and torch's own functions."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from blockscale.selection.candidates import choices, read
from blockscale.selection.objective import Curvature, float_tensors, logits, objective
from tests.selection.models import Tied, batches, mlp


def pair():
    torch.manual_seed(0)
    return torch.randn(2, 3, 5), torch.randn(2, 3, 5)


def test_distance():
    a, b = pair()
    measured = objective("distance").measure(a, b, None)
    x, y = (side.double().numpy().reshape(6, 5) for side in (a, b))
    damage = [((p - q) ** 2).sum() / (p**2).sum() for p, q in zip(x, y, strict=True)]
    cosine = [p @ q / np.linalg.norm(p) / np.linalg.norm(q) for p, q in zip(x, y, strict=True)]
    assert measured.damage == pytest.approx(np.mean(damage), rel=1e-12)
    assert measured.quality == pytest.approx(np.mean(cosine), rel=1e-12)
    assert objective("distance").measure(a, a, None).damage == 0


def test_divergence():
    a, b = pair()
    measured = objective("kl").measure(SimpleNamespace(logits=a), {"logits": b}, None)
    p, q = (side.double().reshape(6, 5).log_softmax(-1) for side in (a, b))
    expected = float(F.kl_div(q, p, reduction="batchmean", log_target=True))
    assert measured.damage == pytest.approx(expected, rel=1e-12)
    assert measured.quality == -measured.damage


def test_loss_and_output():
    a, b = pair()
    what = objective(lambda out, batch: F.mse_loss(out, batch["y"]), lambda out, batch: out["z"])
    assert what.of({"z": a}, {}) is a
    measured = what.measure(a, b, {"y": torch.zeros_like(a)})
    before, after = float(a.square().mean()), float(b.square().mean())
    assert (measured.damage, measured.quality) == (after - before, -after)


def test_sums_are_over_rows():
    a, b = pair()
    total = objective("distance").measure(a[:1], b[:1], None)
    total += objective("distance").measure(a[1:, :1], b[1:, :1], None)
    rows = torch.cat([a[0], a[1, :1]]), torch.cat([b[0], b[1, :1]])
    assert total.damage == pytest.approx(objective("distance").measure(*rows, None).damage)


def test_a_broken_output_is_infinite_damage():
    a, b = pair()
    b[0, 0, 0] = math.nan
    assert objective("distance").measure(a, b, None).damage == math.inf
    assert objective("kl").measure(a, b, None).damage == math.inf
    assert objective(lambda out, batch: out.sum()).measure(a, b, None).damage == math.inf


def test_probes_are_random_sums_of_the_rows():
    a = pair()[0].requires_grad_()
    number = objective("distance").probe(a, None, torch.Generator().manual_seed(7))
    [gradient] = torch.autograd.grad(number, a)
    drawn = torch.randn((6, 5), generator=torch.Generator().manual_seed(7)).reshape(a.shape)
    assert torch.allclose(gradient * a.detach().norm(dim=-1, keepdim=True), drawn, rtol=1e-5)
    number = objective("kl").probe(a, None, torch.Generator().manual_seed(7))
    [gradient] = torch.autograd.grad(number, a)
    # the gradient of log p(y) for a drawn y: one-hot minus p
    hot = (gradient + a.detach().softmax(-1)).reshape(6, 5)
    assert torch.allclose(hot.amax(-1), torch.ones(6))
    assert torch.allclose(hot.sum(-1), torch.ones(6))


def test_what_is_no_objective():
    with pytest.raises(
        ValueError, match="unknown objective 'cosine'; choose from distance, kl, or pass"
    ):
        objective("cosine")
    with pytest.raises(ValueError, match="the model returns no float tensor"):
        float_tensors({"ids": torch.arange(3)})
    assert logits((torch.arange(2), torch.ones(3))).shape == (3,)


# The diagonal against gradients that are taken one by one.


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
