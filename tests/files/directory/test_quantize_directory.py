# SPDX-License-Identifier: BSD-3-Clause
"""A directory in, a quantized one out: the reference's bits, and the rest as it was."""

import hashlib
import json
from pathlib import Path

import pytest
import torch

from blockscale.core.parse import formats, parse
from blockscale.core.recipe import Recipe
from blockscale.files.directory.quantize_directory import as_json, quantize_directory
from blockscale.files.metadata import Metadata
from blockscale.files.stream import Reader
from tests.files.directory.places import Listener
from tests.files.directory.reference_bits import check_bits, load_all
from tests.support.file_models import CONFIG, tiny_tensors, write_model

MATRICES = {
    "embed.weight": "plain",
    "layers.0.proj.weight": "plain",
    "layers.1.proj.weight": "plain",
    "conv.weight": "channels_last",
    "conv1d.weight": "channels_last",
    "experts": "plain",
    "head.weight": "plain",
}


SKIPPED = {"double.weight", "eight.weight"}


@pytest.mark.some(21)
@pytest.mark.parametrize("name", [*formats(), "int8:group8:e8m0:stochastic", "int8:channel1:fp32"])
@pytest.mark.parametrize("shards", [1, 3])
def test_the_bits_are_the_references(name, shards, tmp_path):
    model = write_model(tmp_path / "model", tiny_tensors(), shards)
    quantize_directory(model, tmp_path / "out", name, seed=5)
    check_bits(load_all(tmp_path / "out"), tiny_tensors(), MATRICES, parse(name), 5)


def test_the_ledger_and_the_metadata(tmp_path):
    model = write_model(tmp_path / "model", tiny_tensors())
    recipe = Recipe(
        "mxfp4", input="int8_token", rules={"layers.0.proj": "int8_channel"}, skip=["head.weight"]
    )
    ledger = quantize_directory(model, tmp_path / "out", recipe)
    assert {entry.name for entry in ledger.quantized} == MATRICES.keys() - {"head.weight"}
    assert {entry.name for entry in ledger.skipped} == SKIPPED
    reasons = {entry.name: entry.reason for entry in ledger if entry.reason}
    assert reasons == {
        "layers.0.proj.bias": "a vector, such as a norm's weight or a bias",
        "layers.1.proj.bias": "a vector, such as a norm's weight or a bias",
        "layers.0.norm.weight": "a vector, such as a norm's weight or a bias",
        "cls_token": "a vector, such as a norm's weight or a bias",
        "double.weight": "float64; only float32, bfloat16 and float16 can be quantized",
        "eight.weight": "float8_e4m3fn; only float32, bfloat16 and float16 can be quantized",
        "steps": "int64, not floating point",
        "positions": "int64, not floating point",
        "mask.weight": "bool, not floating point",
        "empty.weight": "empty",
        "head.weight": "pattern 'head.weight' of the recipe",
    }
    kinds = {entry.name: entry.kind for entry in ledger.quantized}
    assert kinds["conv.weight"] == kinds["conv1d.weight"] == "convolution"
    assert (kinds["experts"], kinds["embed.weight"]) == ("stack", "matrix")
    entry = ledger["layers.0.proj.weight"]
    assert (entry.weight, entry.input) == ("int8:channel0:fp32", "int8:token:fp32")
    assert (entry.bytes_before, entry.bytes_after) == (33 * 40 * 4, 33 * 40 + 33 * 4)
    with Reader(tmp_path / "out" / "model.safetensors") as reader:
        metadata = Metadata.decode(reader.metadata, "file")
        assert reader.metadata["format"] == "pt"
        assert ledger.bytes_after == sum(spec.nbytes for spec in reader.tensors.values())
    assert metadata.tensors.keys() == kinds.keys()
    info = metadata.tensors["conv.weight"]
    assert (info.format, info.shape) == ("e2m1:group32:e8m0/floor", (6, 4, 3, 3))
    assert (info.dtype, info.layout) == ("bfloat16", "channels_last")
    assert metadata.layers["layers.1.proj"] == {"input": "int8:token:fp32"}
    assert metadata.layers["experts"] == {"input": "int8:token:fp32"}
    written = json.loads((tmp_path / "out" / "blockscale_ledger.json").read_text())
    assert written["entries"] == json.loads(ledger.to_json())["entries"]
    assert written["recipe"] == recipe.to_dict()
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    method = {"method": "blockscale", "version": 1, "recipe": recipe.to_dict()}
    assert config == CONFIG | {"quantization_config": method}


@pytest.mark.slow
def test_shards_and_index(tmp_path):
    model = write_model(tmp_path / "model", tiny_tensors(), 3)
    quantize_directory(model, tmp_path / "out", "nvfp4")
    before, after = (
        json.loads((folder / "model.safetensors.index.json").read_text())
        for folder in (model, tmp_path / "out")
    )
    assert after["metadata"]["owner"] == "test"
    sizes = 0
    for file in sorted(set(before["weight_map"].values())):
        with Reader(tmp_path / "out" / file) as reader:
            here = {name for name, where in after["weight_map"].items() if where == file}
            assert reader.tensors.keys() == here
            sizes += sum(spec.nbytes for spec in reader.tensors.values())
            owners = {name.removesuffix(".codes") for name in here if name.endswith(".codes")}
            assert all(before["weight_map"][name] == file for name in owners)
    assert after["metadata"]["total_size"] == sizes


def test_tied_names_stay(tmp_path):
    metadata = {"head.weight": "embed.weight"}  # as safetensors.torch.save_model writes it
    model = write_model(tmp_path / "model", {"embed.weight": torch.ones(4, 4)}, metadata=metadata)
    quantize_directory(model, tmp_path / "out", "int8")
    with Reader(tmp_path / "out" / "model.safetensors") as reader:
        assert Metadata.decode(reader.metadata, "file").aliases == metadata
        assert reader.metadata["head.weight"] == "embed.weight"


def test_seeds(tmp_path):
    x = torch.rand(16, 32)
    model = write_model(tmp_path / "model", {"a.weight": x, "b.weight": x.clone()})
    found = {}
    for seed in (0, 1):
        quantize_directory(model, tmp_path / str(seed), "int8:tensor:fp32:stochastic", seed=seed)
        found[seed] = load_all(tmp_path / str(seed))
    assert not torch.equal(found[0]["a.weight.codes"], found[1]["a.weight.codes"])
    assert not torch.equal(found[0]["a.weight.codes"], found[0]["b.weight.codes"])


def test_notes_reach_the_ledger(tmp_path):
    x = torch.ones(16, 32)
    x[3, 4] = torch.nan
    model = write_model(tmp_path / "model", {"a.weight": x})
    with pytest.warns(UserWarning, match=r"a.weight: 1 of 512 weights are NaN or infinite"):
        ledger = quantize_directory(model, tmp_path / "out", "int8")
    assert ledger["a.weight"].notes == ("1 of 512 weights are NaN or infinite",)


@pytest.mark.slow
def test_progress_adds_up(place):
    for recipe in ("mxfp4", "nvfp4", "int8", "ternary"):
        said = Listener()
        quantize_directory(place.model, place.folder / recipe, recipe, progress=said)
        assert said.total == said.advanced == sum(t.nbytes for t in tiny_tensors().values())
        assert said.done == 0


def test_the_result_loads(tmp_path):
    """`bs.load` reads the directory into a float model."""
    from blockscale.files.load import load

    torch.manual_seed(0)
    source = torch.nn.Sequential(torch.nn.Linear(32, 16), torch.nn.Conv2d(3, 4, 3))
    model = write_model(tmp_path / "model", source.state_dict(), 2)
    quantize_directory(model, tmp_path / "out", "int8_channel")
    loaded = load(
        torch.nn.Sequential(torch.nn.Linear(32, 16), torch.nn.Conv2d(3, 4, 3)), tmp_path / "out"
    )
    x = torch.randn(2, 32)
    error = (loaded[0](x) - source[0](x)).abs().max()
    assert 0 < error < 0.05


def test_paths_may_be_text(place):
    quantize_directory(str(place.model), str(place.out), parse("int8"))
    assert Path(place.out, "config.json").exists()


def test_what_the_ledger_says_of_the_run(model, tmp_path):
    out = tmp_path / "out"
    quantize_directory(model, out, "nvfp4", seed=3)
    told = json.loads((out / "blockscale_ledger.json").read_text())
    assert told["seed"] == 3 and told["source"] == str(model)
    files = {each.relative_to(out).as_posix(): each for each in out.rglob("*") if each.is_file()}
    del files["blockscale_ledger.json"]
    assert told["files"] == {
        name: {
            "bytes": each.stat().st_size,
            "sha256": hashlib.sha256(each.read_bytes()).hexdigest(),
        }
        for name, each in files.items()
    }
    assert {name: each["bytes"] for name, each in told["sources"].items()} == {
        each.name: each.stat().st_size for each in model.glob("*.safetensors")
    }


def test_json_ends_with_a_line():
    assert as_json({"a": 1}) == b'{\n  "a": 1\n}\n'
