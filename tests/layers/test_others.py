"""Parameters that belong to no layer: kept or skipped, never passed over."""

import torch
from torch import nn

import blockscale as bs
from blockscale.layers.others import plan_others
from blockscale.layers.plan import plan_layers


def test_parameters_of_no_layer() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.LayerNorm(2))
    model.register_parameter("free", nn.Parameter(torch.ones(3, 3)))
    model.register_parameter("kept", nn.Parameter(torch.ones(3, 3)))
    recipe = bs.Recipe("int8", skip=["kept"])
    entries = {e.name: e for e in plan_others(model, plan_layers(model, recipe), recipe)}
    assert list(entries) == ["free", "kept", "1.weight", "1.bias"]
    assert entries["free"].status == "skipped"
    assert "uses it directly" in entries["free"].reason
    assert (entries["kept"].status, entries["kept"].reason) == (
        "kept", "pattern 'kept' of the recipe"
    )  # fmt: skip
    assert entries["1.weight"].reason.startswith("a vector")
    assert (entries["free"].elements, entries["free"].bytes_before) == (9, 36)
