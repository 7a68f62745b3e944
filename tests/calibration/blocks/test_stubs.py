# SPDX-License-Identifier: BSD-3-Clause
"""Blocks whose calls go elsewhere, for a while."""

from typing import Any

import pytest
from torch import Tensor, nn

from blockscale.calibration.blocks.stubs import Stop, stubbed
from tests.calibration.walk.networks import CALLS, Block, decoder, ids


def test_blocks_do_not_run_and_are_what_they_were() -> None:
    model, seen = decoder(2), []
    blocks = {layer: i for i, layer in enumerate(model.layers)}
    model.layers[0].register_forward_hook(lambda *_: pytest.fail("a hook ran"))

    def enter(i: int, args: tuple[Tensor, ...], kwargs: dict[str, Any]) -> Any:
        seen.append((i, args[0].shape, sorted(kwargs)))
        return args[0] + 1, None

    with stubbed(blocks, enter):
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
    with pytest.raises(Stop), stubbed({model.block: 0}, enter):
        model()
    assert type(model.block) is nn.Linear
