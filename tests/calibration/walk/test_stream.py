# SPDX-License-Identifier: BSD-3-Clause
"""Weights that are read one block at a time."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

import blockscale as bs
from blockscale.calibration.calibrate import calibrate
from blockscale.calibration.walk.stream import Stream
from tests.calibration.walk.networks import (
    CALLS,
    GROUPS,
    Decoder,
    Gram,
    Plain,
    decoder,
    ids,
    same_state,
)


def on_meta(blocks: int) -> Decoder:
    with torch.device("meta"):
        model = Decoder(blocks).eval()
    CALLS.clear()
    return model


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({"weight": "gptq"}, marks=pytest.mark.slow),
        {"weight": Plain(), "transform": "awq"},
        {"weight": Gram(), "sequential": False},
    ],
)
def test_streamed_is_what_loaded_gives(tmp_path: Path, options: dict[str, Any]) -> None:
    loaded, streamed = decoder(3), on_meta(3)
    save_file(loaded.state_dict(), tmp_path / "model.safetensors")
    recipe = bs.Recipe(GROUPS, "int8")
    told = calibrate(loaded, ids(), recipe, **options, progress=False)
    ledger = calibrate(streamed, ids(), recipe, **options, progress=False, source=tmp_path)
    assert same_state(loaded, streamed)
    assert [vars(entry) for entry in ledger] == [vars(entry) for entry in told]
    assert torch.equal(loaded(ids()[0]), streamed(ids()[0]))
    assert not any(module.training for module in streamed.modules())


def test_a_model_of_32_blocks_holds_the_floats_of_one() -> None:
    state, model = decoder(32).state_dict(), on_meta(32)
    most, alive = 0, {name: p for name, p in model.named_parameters() if ".up." in name}

    def read(name: str) -> Tensor:
        nonlocal most
        most = max(most, sum(not p.is_meta for p in alive.values() if p.ndim > 1))
        return state[name]

    recipe = bs.Recipe(GROUPS, skip=["head", "table"])
    calibrate(model, ids(), recipe, weight=Gram(), progress=False, source=read)
    assert most == 1
    assert max(CALLS.values()) <= 3 * 3
    assert len(CALLS) == 32
    assert not any(t.is_meta for t in [*model.parameters(), *model.buffers()])


def test_whatever_is_raised_the_model_is_on_the_meta_device_again() -> None:
    state, model = decoder(3).state_dict(), on_meta(3)

    def read(name: str) -> Tensor:
        if name.startswith("layers.2"):
            raise KeyboardInterrupt
        return state[name]

    with pytest.raises(KeyboardInterrupt):
        calibrate(model, ids(), GROUPS, weight=Gram(), progress=False, source=read)
    assert all(parameter.is_meta for parameter in model.parameters())
    assert all(type(module).__name__[0] != "Q" for module in model.modules())


def test_what_a_source_lacks_is_named(tmp_path: Path) -> None:
    state = decoder(2).state_dict()
    del state["layers.1.norm.bias"]
    with pytest.raises(ValueError, match=r"the source has no 'layers\.1\.norm\.bias'"):
        calibrate(on_meta(2), ids(), GROUPS, weight=Gram(), progress=False, source=state)
    state = decoder(2).state_dict() | {"norm.weight": torch.ones(3)}
    with pytest.raises(ValueError, match=r"norm\.weight: expected \(16,\), the source has \(3,\)"):
        calibrate(on_meta(2), ids(), GROUPS, weight=Gram(), progress=False, source=state)
    with pytest.raises(ValueError, match="holds no safetensors files"):
        Stream(on_meta(2), tmp_path)
