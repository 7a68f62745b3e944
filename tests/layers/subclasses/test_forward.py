# SPDX-License-Identifier: BSD-3-Clause
"""What a subclass computes: as its parent, or something of its own."""

import pytest
import torch
from torch import Tensor, nn

import blockscale as bs
from blockscale.layers.subclasses import computes_as_parent
from blockscale.layers.subclasses.forward import has_own_forward, parent_of, same_meaning


class Same(nn.Linear):
    pass


class Further(Same):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x)


class Step(nn.Conv2d):
    def _conv_forward(self, *args: Tensor) -> Tensor:
        return super()._conv_forward(*args)


def test_what_is_its_own() -> None:
    assert not has_own_forward(Same, nn.Linear)
    assert has_own_forward(Further, nn.Linear)
    assert has_own_forward(Step, nn.Conv2d)
    assert [parent_of(each) for each in (Further, Step, nn.Embedding)] == [
        nn.Linear, nn.Conv2d, nn.Embedding,
    ]  # fmt: skip
    assert parent_of(nn.LSTM) is None


def test_classes_are_known_by_their_library_too() -> None:
    def of(name: str, module: str) -> type:
        return type(name, (nn.Linear,), {"__module__": module, "forward": lambda s, x: x})

    assert same_meaning(of("Linear", "timm.layers.linear"))
    assert same_meaning(of("FalconLinear", "transformers.models.falcon.modeling_falcon"))
    for other in [of("Linear", "mine"), of("FalconLinear", "mine"), of("Mlp", "timm.layers.mlp")]:
        assert not same_meaning(other)
        assert has_own_forward(other, nn.Linear)


def test_one_may_be_declared() -> None:
    @computes_as_parent
    class Spelled(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return x @ self.weight.T + self.bias

    model = nn.Sequential(Spelled(16, 8))
    ledger = bs.quantize_(model, bs.Recipe("int8_channel", input="int8_token"), strict=True)
    assert ledger["0"].input
    assert not ledger["0"].notes
    assert model(torch.ones(2, 16)).shape == (2, 8)
    with pytest.raises(ValueError, match="Sequential is no subclass of a layer that is replaced"):
        computes_as_parent(nn.Sequential)
    with pytest.raises(ValueError, match="Linear is no subclass"):
        computes_as_parent(nn.Linear)
