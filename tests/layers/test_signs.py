# SPDX-License-Identifier: BSD-3-Clause
"""Unsigned formats on values that have a sign are said, wherever the values are known."""

import warnings

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import blockscale as bs
from blockscale.layers.saturation import lost_signs

UNSIGNED = (
    "uint4:tensor:fp32",
    "uint8:channel0:bf16",
    "uint4:group8:e8m0/floor",
    "uint3:token:e4m3",
)
KEEPS = (
    "uint4:tensor:fp32:asym",
    "int4:tensor:fp32",
    "e2m1:group8:e8m0/floor",
    "binary",
    "log4:token:fp32",
)
SAID = r"which {} cannot hold: they become 0; give it a zero point \(asym\) or a signed element"


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 8))


def told(fmt: str, part: str = "weight") -> str:
    return rf"0: its {part} has values below 0, " + SAID.format(fmt)


@pytest.mark.parametrize("fmt", [*UNSIGNED, *KEEPS])
def test_it_says_what_the_format_does(fmt: str) -> None:
    """A note exactly where nothing below 0 survives."""
    form, x = bs.parse(fmt), torch.tensor([[-3.0, 2.0, -1.0, 0.5] * 4] * 4)
    lost = not bool((bs.fake_quantize(x, fmt) < 0).any())
    assert lost == (fmt in UNSIGNED)
    assert bool(lost_signs("weight", x, form)) == lost
    for whole in (x.abs(), torch.tensor([-0.0, 0.0]), torch.tensor([torch.nan, 1.0])):
        assert lost_signs("weight", whole, form) == []


@pytest.mark.parametrize("fmt", UNSIGNED)
def test_weights(fmt: str) -> None:
    model = net()
    with pytest.warns(UserWarning, match=told(fmt)) as caught:
        ledger = bs.quantize_(model, fmt)
    assert len(caught) == 1
    assert [len(ledger[name].notes) for name in ("0", "2")] == [1, 1]
    assert not bool((model[0].dequantize_weight() < 0).any())


def test_no_sign_no_word() -> None:
    model = net()
    for parameter in model.parameters():
        parameter.data.abs_()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        bs.quantize_(model, "uint4:tensor:fp32")
        for fmt in KEEPS:
            bs.quantize_(net(), fmt)


@pytest.mark.parametrize("observer", ["min_max", "moving_average", "mse"])
def test_static_inputs(observer: str) -> None:
    """The first layer's input is signed; the second's comes from a ReLU."""
    recipe, data = bs.Recipe("int8", input="uint8:tensor:fp32"), [torch.randn(32, 16)]
    with pytest.warns(UserWarning, match=told("uint8:tensor:fp32", "input")):
        ledger = bs.calibrate(net(), data, recipe, observer, progress=False)
    assert [len(ledger[name].notes) for name in ("0", "2")] == [1, 0]


def test_weights_that_an_algorithm_chose() -> None:
    with pytest.warns(UserWarning, match=told("uint4:tensor:fp32")):
        bs.calibrate(net(), [torch.randn(4, 16)], "uint4:tensor:fp32", weight="mse", progress=False)


def test_training() -> None:
    with pytest.warns(UserWarning, match=told("uint4:channel0:fp32")):
        bs.prepare_qat(net(), "uint4:channel0:fp32")


@pytest.mark.parametrize("fmt", UNSIGNED)
def test_directories(fmt: str, tmp_path) -> None:
    source, target = tmp_path / "float", tmp_path / "quantized"
    source.mkdir()
    save_file({"fc.weight": torch.randn(8, 16)}, source / "model.safetensors")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ledger = bs.quantize_directory(source, target, fmt, progress=False)
    assert len(ledger["fc.weight"].notes) == 1
    assert "they become 0" in ledger["fc.weight"].notes[0]
