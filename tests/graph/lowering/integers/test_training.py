# SPDX-License-Identifier: BSD-3-Clause
"""Training with powers of two for scales, and for weights: the integers are the trained model."""

import pytest
import torch

import blockscale as bs
from tests.support.digit_models import accuracy, cnn, digits, fit, resnet, trained

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]
INT8, LOG4 = "int8:channel0:pow2/nearest", "log4:channel0:pow2/nearest"


def tuned(graph, steps):
    """Train by steps; the learned scales before."""
    x, *_ = digits()
    graph.train()
    graph(x[:64])  # learned scales of inputs begin with the first batch
    before = {n: p.detach().clone() for n, p in graph.named_parameters() if ".learned." in n}
    fit(graph, steps, 1e-3, 64)
    graph.eval()
    return before


@pytest.mark.parametrize(
    ("make", "weight", "learn"),
    [(cnn, INT8, "thresholds"), (cnn, LOG4, None), (cnn, LOG4, "thresholds"),
     (resnet, INT8, "thresholds")],
)  # fmt: skip
def test_integers_are_the_trained_model(make, weight, learn):
    torch.manual_seed(0)
    model = trained(make(), 100)
    x, _, tests, _ = digits()
    program = torch.export.export(model, (x[:64],), dynamic_shapes=({0: torch.export.Dim("n")},))
    recipe = bs.graph.integer_recipe(program, weight=weight, input="int8:tensor:pow2/nearest")
    prepared = bs.graph.prepare(program, recipe, qat=True, learn=learn)
    before = tuned(prepared, 60)
    after = dict(prepared.named_parameters())
    assert bool(before) == bool(learn)
    moved = [name for name, old in before.items() if not torch.equal(after[name], old)]
    # an input whose values are multiples of its step, as digits' are, gives its scale no gradient
    assert all(name in moved for name in before if "input_quantizer" not in name)
    assert any("input_quantizer" in name for name in moved) == bool(learn)
    lowered = bs.graph.lower(bs.graph.fuse(bs.graph.convert(prepared)), "integer")
    audit = bs.graph.audit_integer(lowered)
    assert audit.integer and audit.exact
    assert all(each.shifts == (weight == LOG4) for each in audit.weights)
    with torch.no_grad(), bs.use("reference"):
        expected = prepared(tests[:64])
        assert torch.equal(lowered(tests[:64]), expected)
    with torch.no_grad():
        assert torch.equal(lowered(tests[:64]), expected)  # kernels
    assert accuracy(lowered) >= accuracy(model) - 0.5
