# SPDX-License-Identifier: BSD-3-Clause
"""Quantized biases in files: written, read into any model, looked at, compared, refused."""

import math
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import blockscale as bs
from blockscale.export.checkpoints.comparing import compare
from blockscale.files.inspect import inspect
from blockscale.files.metadata import TensorInfo
from blockscale.layers.layer import QBias
from blockscale.layers.store import QWeight
from tests.support.layers_bias import IMAGES, ROWS, STATIC, calibrated, mlp, network
from tests.support.saved import bits, put, refused, rewrite

HEAD = ("tensors", "0.bias")


@pytest.fixture
def model() -> Any:
    return calibrated(mlp(), ROWS)


@pytest.fixture
def path(model: Any, tmp_path: Path) -> Path:
    bs.save(model, tmp_path / "m.safetensors")
    return tmp_path / "m.safetensors"


@pytest.mark.slow
@pytest.mark.some(8)
@pytest.mark.parametrize("bias", ["int32", "int16:sums", "int7:sums", "mxfp8", "uint8", "nvfp4"])
def test_there_and_back(bias: str, tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # few bits saturate
        model = calibrated(network(), IMAGES, bs.Recipe("int8_channel", "int8", bias=bias))
    bs.save(model, tmp_path / "m")
    for device in ("cpu", "meta"):
        with torch.device(device):
            other = network()
        bs.load(other, tmp_path / "m")
        assert bits(other.eval()) == bits(model)
        assert torch.equal(other(IMAGES), model(IMAGES))
        assert type(other[0].bias) is type(model[0].bias)
    stored = load_file(tmp_path / "m")
    assert torch.equal(stored["0.bias.codes"], model[0].bias.codes)
    assert "0.bias" not in stored


def test_what_the_file_says(path: Path) -> None:
    stored = load_file(path)
    assert (stored["0.bias.codes"].dtype, stored["0.bias.scale"].dtype) == (
        torch.int32,
        torch.float32,
    )
    rows = {row.name: row for row in inspect(path).rows}
    row = rows["0.bias"]
    assert (row.format, row.shape, row.bits, row.quantized) == ("int32:sums", (16,), 64.0, True)
    assert rows["0.weight"].input == "int8:tensor:fp32"
    assert inspect(path).total.elements == 24 * 16 + 16 + 16 * 6 + 6
    assert TensorInfo("int16:sums", (5,)).parts() == {
        "codes": (torch.int16, (5,)),
        "scale": (torch.float32, (5,)),
    }


@pytest.mark.slow
def test_into_a_model_of_another_dtype(model: Any, path: Path) -> None:
    other = bs.load(mlp().bfloat16(), path).eval()
    model.bfloat16()
    x = ROWS.bfloat16()
    assert bits(other) == bits(model)
    assert torch.equal(other(x), model(x))
    assert other[0].bias.dtype == torch.bfloat16


def test_one_layer_under_two_names(tmp_path: Path) -> None:
    def shared() -> nn.Sequential:
        torch.manual_seed(0)
        layer = nn.Linear(8, 8)
        return nn.Sequential(layer, nn.ReLU(), layer)

    x = torch.randn(5, 8)
    model = calibrated(shared(), x)
    bs.save(model, tmp_path / "m")
    stored = load_file(tmp_path / "m")
    assert "0.bias.codes" in stored
    assert not [name for name in stored if name.startswith("2.bias")]
    other = bs.load(shared(), tmp_path / "m").eval()
    assert other[0].bias is other[2].bias
    assert torch.equal(other(x), model(x))


def test_where_no_layer_holds_codes_floats_are_loaded(model: Any, path: Path) -> None:
    class Mine(nn.Linear):
        """A subclass that cannot be a quantized layer, which has such an attribute itself."""

        output = None

    other = mlp()
    other[0] = Mine(24, 16)
    words = r"dequantized, because their modules cannot hold codes: (0\.bias|0\.weight)"
    with pytest.warns(UserWarning, match=words):
        bs.load(other, path)
    assert torch.equal(other[0].bias, model[0].bias.dequantize())
    assert torch.equal(other[0].weight, model[0].weight.dequantize())
    assert isinstance(other[2].bias, QBias)


@pytest.mark.slow
def test_what_stands_before_a_layer_is_not_applied_to_its_bias(tmp_path: Path) -> None:
    model = calibrated(mlp(), ROWS, transform="smoothquant")
    bs.save(model, tmp_path / "m")
    other = mlp()
    other[0] = type("Mine", (nn.Linear,), {"output": None})(24, 16)
    with pytest.warns(UserWarning, match="dequantized"):
        bs.load(other, tmp_path / "m")
    assert torch.equal(other[0].bias, model[0].bias.dequantize())


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            put("format", "int33:sums", *HEAD),
            "tensor '0.bias': int33:sums: a bias must have 2 to 32",
        ),
        (put("format", "int16:sums", *HEAD), r"0\.bias\.codes should be torch.int16 \(16,\)"),
        (put("format", "bf16", *HEAD), r"tensor '0\.bias': bias: unknown format 'bf16'"),
        (put("shape", [4, 4], *HEAD), r"'0\.bias' of shape \(4, 4\): int32:sums is for a bias \[n"),
        (put("format", "int32:sums", "tensors", "0.weight"), r"tensor '0\.weight': .*int32:sums"),
        (
            put("shape", [6], *HEAD),
            r"0\.bias\.codes should be torch.int32 \(6,\), but is .*: copy the file again",
        ),
    ],
)
def test_damage(change: Any, words: str, path: Path) -> None:
    rewrite(path, change)
    refused(path, words, mlp())


@pytest.mark.slow
def test_missing_parts_and_models_without_the_bias(path: Path) -> None:
    without = mlp()
    without[0] = nn.Linear(24, 16, bias=False)
    refused(path, "it has 0.bias, which this model does not have", without)
    rewrite(path, lambda data: None, lambda stored: stored.pop("0.bias.scale"))
    refused(
        path, r"0\.bias\.scale is missing, though .* 0\.bias is quantized: copy the file", mlp()
    )


def test_compare_dequantizes_them(model: Any, path: Path, tmp_path: Path) -> None:
    floats = mlp()
    bs.save(floats, tmp_path / "f")
    found = {each.name: each for each in compare(tmp_path / "f", path).differences}
    x, y = floats[0].bias.detach().double(), model[0].bias.dequantize().double()
    noise, signal = (x - y).square().sum().item(), x.square().sum().item()
    assert found["0.bias"].max_error == (x - y).abs().max().item()
    assert found["0.bias"].sqnr == pytest.approx(10 * math.log10(signal / noise))
    assert (found["0.bias"].a, found["0.bias"].b) == ("float32", "int32:sums")
    same = {each.name: each for each in compare(path, path).differences}
    assert same["0.bias"].equal


def test_a_file_of_the_first_release_and_one_without_biases_say_nothing_new(tmp_path: Path) -> None:
    model = calibrated(mlp(), ROWS, bs.Recipe("int8_channel", "int8"))
    bs.save(model, tmp_path / "m")
    other = bs.load(mlp(), tmp_path / "m")
    assert isinstance(other[0].bias, nn.Parameter)
    assert "0.bias" in load_file(tmp_path / "m")


def test_after_training(tmp_path: Path) -> None:
    model = bs.prepare_qat(mlp(), STATIC)
    model.train()(ROWS)
    bs.convert(model.eval())
    bs.save(model, tmp_path / "m")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        other = bs.load(mlp(), tmp_path / "m").eval()
    assert torch.equal(other(ROWS), model(ROWS))
    assert not isinstance(other[0].bias, QWeight)
