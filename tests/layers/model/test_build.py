# SPDX-License-Identifier: BSD-3-Clause
"""One layer from its plan."""

import torch
from torch import nn

import blockscale as bs
from blockscale.layers.model.build import build
from blockscale.layers.plan import plan_layers
from blockscale.layers.supplied import Supplied


def test_a_built_layer_is_what_quantize_puts_in() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 4))
    plan = plan_layers(model, bs.Recipe("int8"))[0]
    weights = {}
    layer, entry = build(plan, weights, Supplied(), None)
    ledger = bs.quantize_(model, "int8")
    assert vars(entry) == vars(ledger["0"])
    assert list(weights) == [id(plan.parameter)]
    x = torch.randn(3, 8)
    assert torch.equal(layer(x), model(x))
