# SPDX-License-Identifier: BSD-3-Clause
"""Modules are exchanged all or none."""

import pytest
from torch import nn

from blockscale.layers.model.swap import swap


def test_all_or_none() -> None:
    model = nn.ModuleDict({"a": nn.Sequential(nn.Linear(2, 2)), "b": nn.ReLU()})
    first, second = model["a"][0], model["b"]
    new = {"a.0": nn.Tanh(), "b": nn.Identity()}
    assert swap(model, new) == {"a.0": first, "b": second}
    assert (model["a"][0], model["b"]) == (new["a.0"], new["b"])
    with pytest.raises(TypeError):
        swap(model, {"a.0": first, "b": 3})  # type: ignore[dict-item]
    assert (model["a"][0], model["b"]) == (new["a.0"], new["b"])
    with pytest.raises(AttributeError):
        swap(model, {"a.0": first, "gone": second})
    assert model["a"][0] is new["a.0"]
