# SPDX-License-Identifier: BSD-3-Clause
"""What `inspect` says of files, float and quantized."""

import json
import warnings

import pytest
import torch
from safetensors.torch import load_file, save_file

from blockscale.core.parse import formats
from blockscale.core.recipe import Recipe
from blockscale.files.directory.quantize_directory import quantize_directory
from blockscale.files.inspect import inspect
from blockscale.files.metadata import KEY, FileError
from blockscale.files.stream import Reader
from tests.support.file_models import tiny_tensors, write_model


@pytest.fixture(autouse=True)
def _quiet():
    warnings.simplefilter("ignore", UserWarning)


def test_a_float_directory(tmp_path):
    tensors = tiny_tensors()
    found = inspect(write_model(tmp_path / "model", tensors, 3))
    assert [row.name for row in found.rows] == sorted(tensors)
    for row in found.rows:
        tensor = tensors[row.name]
        assert (row.shape, row.nbytes, row.quantized) == (tuple(tensor.shape), tensor.nbytes, False)
        assert row.format == str(tensor.dtype).removeprefix("torch.")
    assert len(found.files) == 3
    assert found.total.bits == 8 * found.total.nbytes / sum(t.numel() for t in tensors.values())


@pytest.mark.some(8)
@pytest.mark.parametrize("name", formats())
def test_a_quantized_directory(name, tmp_path):
    model = write_model(tmp_path / "model", tiny_tensors(), 2)
    ledger = quantize_directory(model, tmp_path / "out", Recipe(name, input="int8_token"))
    found = inspect(tmp_path / "out")
    assert {row.name for row in found.rows} == {entry.name for entry in ledger}
    for row in found.rows:
        entry = ledger[row.name]
        assert (row.nbytes, row.elements) == (entry.bytes_after, entry.elements)
        assert row.quantized == (entry.status == "quantized")
        assert (row.input, row.output) == (entry.input, entry.output)
        if row.quantized:
            assert row.format == entry.weight
            assert row.shape == tuple(tiny_tensors()[row.name].shape)
    assert found.total.nbytes == ledger.bytes_after == sum(row.nbytes for row in found.totals)
    stored = [
        t for file in (tmp_path / "out").glob("*.safetensors") for t in load_file(file).values()
    ]
    assert found.total.nbytes == sum(tensor.nbytes for tensor in stored)
    assert found.totals == sorted(found.totals, key=lambda row: -row.nbytes)


def test_one_file_and_json(tmp_path):
    model = write_model(tmp_path / "model", {"a.weight": torch.ones(8, 64)})
    quantize_directory(model, tmp_path / "out", "mxfp4")
    found = inspect(tmp_path / "out" / "model.safetensors")
    assert [row.bits for row in found.rows] == [4.25]
    data = json.loads(json.dumps(found.to_dict()))
    assert data["tensors"][0]["format"] == "e2m1:group32:e8m0/floor"
    total = {"format": "all", "tensors": 1, "elements": 512, "nbytes": 272, "bits": 4.25}
    assert data["total"] == total | {"quantized": True}


def test_errors(tmp_path):
    with pytest.raises(FileError, match="nowhere"):
        inspect(tmp_path / "nowhere")
    with pytest.raises(FileError, match="no safetensors"):
        inspect(tmp_path)
    model = write_model(tmp_path / "model", {"a.weight": torch.ones(8, 64)})
    quantize_directory(model, tmp_path / "out", "mxfp4")
    path = tmp_path / "out" / "model.safetensors"
    with Reader(path) as reader:
        metadata = reader.metadata
    tensors = load_file(path)
    save_file({"a.weight.codes": tensors["a.weight.codes"]}, path, metadata)
    with pytest.raises(FileError, match=r"a.weight.scale is missing"):
        inspect(path)
    save_file(tensors | {"a.weight.scale": torch.ones(2)}, path, metadata)
    with pytest.raises(FileError, match=r"a.weight.scale should be torch.uint8 \(8, 2\)"):
        inspect(path)
    newer = json.loads(metadata[KEY]) | {"version": 99}
    save_file(tensors, path, {KEY: json.dumps(newer)})
    with pytest.raises(FileError, match="written in version 99"):
        inspect(path)
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(FileError, match="not a whole safetensors file"):
        inspect(path)
