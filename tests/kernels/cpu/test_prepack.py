# SPDX-License-Identifier: BSD-3-Clause
"""What is kept for a weight follows the weight: its changes, its copies, its end."""

import copy
import gc
import io
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn

import blockscale as bs
from blockscale.kernels.cpu import native
from tests.support.set_aside import set_aside

RECIPES = (("int8_channel", "int8_token"), ("mxfp4", None), ("uint4", "mxint8"))


def layer(weight: str, given: str | None) -> nn.Module:
    model = nn.Sequential(nn.Linear(256, 40))
    bs.quantize_(model, bs.Recipe(weight, given))
    return model


def same_as_reference(model: nn.Module, x: torch.Tensor) -> None:
    with bs.use("reference"):
        expected = model(x)
    with bs.use("cpu"):
        assert (model(x) - expected).abs().max() <= 1e-5 * expected.abs().max()


@pytest.mark.parametrize("recipe", RECIPES, ids=str)
def test_changes_in_place(recipe: tuple) -> None:
    model, other, x = layer(*recipe), layer(*recipe), torch.randn(3, 256)
    same_as_reference(model, x)
    model.load_state_dict(other.state_dict())
    same_as_reference(model, x)
    weight = model[0].weight
    weight.codes.zero_()
    same_as_reference(model, x)
    weight.codes.data.copy_(other[0].weight.codes)  # torch does not count this one
    same_as_reference(model, x)
    weight.scale.add_(1)
    same_as_reference(model, x)
    weight.codes, weight.scale = layer(*recipe)[0].weight.codes, weight.scale.clone()
    same_as_reference(model, x)


@pytest.mark.parametrize("recipe", RECIPES, ids=str)
def test_inference_tensors(recipe: tuple) -> None:
    """Torch counts none of their changes, so their bytes are looked at."""
    with torch.inference_mode():
        model, x = layer(*recipe), torch.randn(3, 256)
        model.load_state_dict({k: v.clone() for k, v in model.state_dict().items()}, assign=True)
        codes = model[0].qweight.codes
        assert codes.is_inference()
        same_as_reference(model, x)
        codes[20, 30] = codes[20, 30] ^ 5
        same_as_reference(model, x)
        codes[0, 0] = codes[0, 0] ^ 3
        same_as_reference(model, x)


def test_the_same_weight_is_prepared_once(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    make = native._READY._make
    monkeypatch.setattr(native._READY, "_make", lambda weight: made.append(weight) or make(weight))
    model = layer("int8_channel", "int8_token")
    for m in (1, 2, 40):
        model(torch.randn(m, 256))
    assert len(made) == 1


def test_it_goes_with_the_weight() -> None:
    set_aside()
    before = len(native._READY)
    model, x = layer("int8_channel", "int8_token"), torch.randn(2, 256)
    model(x)
    assert len(native._READY) == before + 1
    twin = copy.deepcopy(model)
    same_as_reference(twin, x)
    assert len(native._READY) == before + 2
    buffer = io.BytesIO()
    torch.save(model.state_dict(), buffer)
    assert buffer.tell() < 40 * 256 + 8192  # codes alone
    model[0].weight.scale = model[0].weight.scale.clone()  # what is kept for the old one goes
    model(x)
    assert len(native._READY) == before + 2
    del model, twin
    gc.collect()
    assert len(native._READY) == before


def test_strided_codes_and_scales() -> None:
    model, x = layer("int8_channel", "int8_token"), torch.randn(2, 256)
    weight = model[0].weight
    weight.codes = weight.codes.t().contiguous().t()
    weight.scale = weight.scale.expand(40, 3)[:, 1:2]
    same_as_reference(model, x)
    weight.codes[3] += 1
    same_as_reference(model, x)


def test_threads_share_a_weight() -> None:
    model, x = layer("int8_channel", "int8_token"), torch.randn(4, 256)
    expected = model(x)
    fresh = copy.deepcopy(model)
    with ThreadPoolExecutor(4) as pool:
        for y in pool.map(lambda _: fresh(x), range(40)):
            assert torch.equal(y, expected)
