# SPDX-License-Identifier: BSD-3-Clause
"""Networks trained on scikit-learn's digits, and MiniLM: accuracy and bits of their integers."""

import pytest
import torch

import blockscale as bs
from tests.support.digit_models import ViT, accuracy, cnn, digits, resnet, trained

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]


@pytest.mark.parametrize(
    ("make", "steps", "exact"), [(cnn, 400, True), (resnet, 250, True), (ViT, 300, False)]
)
def test_on_digits(make, steps, exact):
    torch.manual_seed(0)
    model = trained(make(), steps)
    x, _, tests, _ = digits()
    program = torch.export.export(model, (x[:64],), dynamic_shapes=({0: torch.export.Dim("n")},))
    prepared = bs.graph.prepare(
        program, bs.graph.integer_recipe(program), observer="mse", weight="mse"
    )
    bs.calibrate(prepared, [(x[:512],)], progress=False)
    graph = bs.graph.fuse(bs.graph.convert(prepared))
    lowered = bs.graph.lower(graph, "integer")
    assert bs.graph.audit_integer(lowered).integer
    with torch.no_grad(), bs.use("reference"):
        found, expected = lowered(tests[:64]), graph(tests[:64])
    with torch.no_grad():
        assert torch.equal(lowered(tests[:64]), found)  # kernels
    if exact:
        assert torch.equal(found, expected)
    before, after = accuracy(model), accuracy(lowered)
    assert before > 90 and after >= before - 0.5, (before, after)
