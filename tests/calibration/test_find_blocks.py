# SPDX-License-Identifier: BSD-3-Clause
"""Repeated blocks, found by themselves or by a pattern."""

from typing import Any

import pytest
from torch import Tensor, nn

import blockscale as bs
from blockscale.calibration.find_blocks import Stop, find_blocks, stubs
from blockscale.layers.plan import Plan, plan_layers
from tests.calibration.walk.networks import CALLS, Block, decoder, ids


def found(model: nn.Module, pattern: str | None = None) -> list[str]:
    plans = [p for p in plan_layers(model, bs.Recipe("int8")) if isinstance(p, Plan)]
    return [block.name for block in find_blocks(model, plans, pattern)]


def test_blocks_of_one_class_in_a_list() -> None:
    assert found(decoder(3)) == ["layers.0", "layers.1", "layers.2"]
    assert found(nn.Sequential(Block(8), Block(8))) == ["0", "1"]


def test_what_are_no_blocks() -> None:
    assert found(nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))) == []  # layers themselves
    assert found(nn.Sequential(Block(8), nn.Sequential(nn.Linear(8, 8)))) == []  # of two classes
    assert found(nn.Sequential(nn.Sequential(nn.ReLU()), nn.Sequential(nn.ReLU()))) == []
    assert found(nn.ModuleList([Block(8)])) == []
    same = Block(8)
    assert found(nn.Sequential(same, same)) == []


def test_the_outermost_list_counts() -> None:
    inner = [nn.Sequential(Block(8), Block(8)) for _ in range(2)]
    assert found(nn.ModuleList(inner)) == ["0", "1"]
    assert found(nn.ModuleDict({"a": inner[0], "b": inner[1]})) == ["a.0", "a.1", "b.0", "b.1"]


def test_a_pattern_names_them() -> None:
    assert found(decoder(3), "layers.*") == ["layers.0", "layers.1", "layers.2"]
    assert found(decoder(3), "layers.[12]") == ["layers.1", "layers.2"]
    with pytest.raises(ValueError, match=r"blocks='model\.layers\.\*' matches no module"):
        found(decoder(3), "model.layers.*")


def test_a_layer_of_two_blocks_is_the_first_ones() -> None:
    model = decoder(2)
    model.layers[1].attention.q = model.layers[0].attention.q
    plans = [p for p in plan_layers(model, bs.Recipe("int8")) if isinstance(p, Plan)]
    first, second = find_blocks(model, plans)
    assert (len(first.plans), len(second.plans)) == (6, 5)


# Blocks whose calls go elsewhere, for a while.


def test_blocks_do_not_run_and_are_what_they_were() -> None:
    model, seen = decoder(2), []
    blocks = {layer: i for i, layer in enumerate(model.layers)}
    model.layers[0].register_forward_hook(lambda *_: pytest.fail("a hook ran"))

    def enter(i: int, args: tuple[Tensor, ...], kwargs: dict[str, Any]) -> Any:
        seen.append((i, args[0].shape, sorted(kwargs)))
        return args[0] + 1, None

    with stubs(blocks, enter):
        assert all(isinstance(layer, Block) for layer in model.layers)
        assert model.layers[1].number == 1
        model(ids()[0])
    assert seen == [(0, (2, 6, 16), ["mask"]), (1, (2, 6, 16), ["mask"])]
    assert not CALLS
    assert all(type(layer) is Block for layer in model.layers)


def test_they_are_put_back_where_the_model_stops() -> None:
    class Careless(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.block = nn.Linear(2, 2)

        def forward(self) -> None:
            try:
                self.block()
            except Exception:
                pytest.fail("Stop is no Exception")

    def enter(*_: Any) -> Any:
        raise Stop

    model = Careless()
    with pytest.raises(Stop), stubs({model.block: 0}, enter):
        model()
    assert type(model.block) is nn.Linear
