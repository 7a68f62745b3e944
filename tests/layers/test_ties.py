# SPDX-License-Identifier: BSD-3-Clause
"""Layers that share a weight get one set of codes, or stay as they are together."""

import pytest
from torch import nn

import blockscale as bs
from blockscale.layers.plan import plan_layers
from blockscale.layers.ties import shared_weights
from tests.support.layers_plan import Tied


@pytest.mark.parametrize(
    ("recipe", "statuses", "told"),
    [
        (bs.Recipe("int8"), ["quantized"] * 3, ""),
        (
            bs.Recipe("int8", rules={"head": "int4"}),
            ["skipped", "skipped", "quantized"],
            "its weight is tied to head, which cannot share its codes",
        ),
        (
            bs.Recipe("int8", skip=["head"]),
            ["skipped", "kept", "quantized"],
            "its weight is tied to head, which cannot share its codes",
        ),
    ],
)
def test_tied_weights_share_codes_or_stay(
    recipe: bs.Recipe, statuses: list[str], told: str
) -> None:
    plans = plan_layers(Tied(), recipe)
    assert [plan.entry.status for plan in plans] == statuses
    assert plans[0].entry.reason == told


def test_a_weight_that_something_else_uses_stays() -> None:
    class Raw(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 4)
            self.own = self.layer.weight

    [left] = plan_layers(Raw(), bs.Recipe("int8"))
    assert left.entry.reason == "its weight is tied to own, which cannot share its codes"


def test_the_layers_of_each_weight() -> None:
    model = Tied()
    layers = {module: (name,) for name, module in model.named_children()}
    assert shared_weights(layers) == {
        id(model.table.weight): [model.table, model.head],
        id(model.alone.weight): [model.alone],
    }
    bs.quantize_(model, "int8")
    quantized = {module: (name,) for name, module in model.named_children()}
    assert shared_weights(quantized) == {}  # they hold no float weight any more
