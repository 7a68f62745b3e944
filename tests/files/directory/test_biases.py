# SPDX-License-Identifier: BSD-3-Clause
"""Biases of a directory: those of quantized layers, in formats with a scale of their own."""

import re
from pathlib import Path

import pytest
import torch
from torch import nn

import blockscale as bs
from blockscale.core.ledger import SkippedError
from blockscale.files.directory.eligibility import why_not_vector
from blockscale.files.directory.quantize_directory import quantize_directory
from blockscale.files.header import StoredTensor
from tests.support.file_models import tiny_tensors, write_model
from tests.support.layers_bias import IMAGES
from tests.support.saved import bits


def network() -> nn.Sequential:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.Flatten(), nn.Linear(288, 10), nn.LayerNorm(10), nn.Linear(10, 4)
    )
    nn.init.normal_(model[3].bias)
    return model


@pytest.mark.parametrize("shards", [1, 2, 5])
@pytest.mark.parametrize("bias", ["int8", "int4:group3:fp32:stochastic", "mxfp8"])
def test_the_bits_are_those_of_quantize_(bias: str, shards: int, tmp_path: Path) -> None:
    """Also where a bias lies in another file than its weight."""
    model = network()
    tensors = {n: t.detach() for n, t in model.state_dict().items()}
    source = write_model(tmp_path / "model", tensors, shards)
    recipe = bs.Recipe("int8_channel", bias=bias, rules={"4.bias": {"bias": None}})
    ledger = quantize_directory(source, tmp_path / "out", recipe, strict=True, seed=3)
    bs.quantize_(model, recipe, seed=3)
    other = bs.load(network(), tmp_path / "out")
    assert bits(other) == bits(model)
    assert torch.equal(other(IMAGES), model(IMAGES))
    entries = {entry.name: entry for entry in ledger}
    spelled = str(bs.parse(bias))
    assert [entries[f"{i}.bias"].bias for i in (0, 2, 3, 4)] == [spelled, spelled, "", ""]
    assert entries["3.bias"].status == "kept"
    assert entries["0.bias"].bytes_after == model[0].bias.nbytes


def test_steps_of_sums_need_data(tmp_path: Path) -> None:
    tensors = {n: t.detach() for n, t in network().state_dict().items()}
    source = write_model(tmp_path / "model", tensors)
    recipe = bs.Recipe("int8_channel", "int8", bias="int32")
    words = r"0\.bias: skipped, bias left in float: int32:sums counts steps of a static input"
    with pytest.raises(SkippedError, match=r"0\.bias \(bias\): bias left in float"):
        quantize_directory(source, tmp_path / "strict", recipe, strict=True)
    with pytest.warns(UserWarning, match=words):
        ledger = quantize_directory(source, tmp_path / "out", recipe)
    assert [e.name for e in ledger.skipped] == ["0.bias", "2.bias", "4.bias"]
    assert isinstance(bs.load(network(), tmp_path / "out")[0].bias, nn.Parameter)


def test_every_tensor_that_a_file_can_hold(tmp_path: Path) -> None:
    source = write_model(tmp_path / "model", tiny_tensors() | {"double.bias": torch.ones(4)}, 3)
    with pytest.warns(UserWarning, match="double.weight: skipped"):
        ledger = quantize_directory(source, tmp_path / "out", bs.Recipe("mxfp4", bias="int8"))
    entries = {entry.name: entry for entry in ledger}
    assert {n for n, e in entries.items() if e.bias} == {
        "layers.0.proj.bias",
        "layers.1.proj.bias",
    }
    assert entries["double.bias"].reason.startswith("a vector")  # its weight stays in float


@pytest.mark.parametrize(
    ("shape", "dtype", "fmt", "words"),
    [
        ((8,), "F32", "int8", ""),
        ((8,), "BF16", "mxfp4", ""),
        ((8,), "F64", "int8", "float64; only float32, bfloat16 and float16 can be quantized"),
        ((2, 4), "F32", "int8", r"\(2, 4\) is not the bias of a layer"),
        ((0,), "F32", "int8", r"\(0,\) is not the bias of a layer"),
        ((8,), "F32", "int8:tile2x2:fp32", "tile2x2"),
    ],
)
def test_which_vectors(shape: tuple, dtype: str, fmt: str, words: str) -> None:
    found = why_not_vector(StoredTensor(dtype, shape, 0), bs.parse(fmt))
    assert re.search(words, found) if words else found == ""
