# SPDX-License-Identifier: BSD-3-Clause
"""Weights that layers compute: a directory folds them to the bits that a model in memory has."""

import warnings
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, spectral_norm, weight_norm

import blockscale as bs
from blockscale.files.directory import quantize_directory as runs
from blockscale.files.slabs import cutting
from tests.support.directory_models import Build, new, several, trained
from tests.support.file_models import contents, write_model

pytestmark = pytest.mark.filterwarnings("ignore:.*is deprecated:FutureWarning")


def hooked() -> nn.Module:
    """The same with the older hooks."""
    return nn.Sequential(
        weight_norm(nn.Linear(32, 48)), weight_norm(nn.Conv1d(8, 32, 40), dim=None),
        weight_norm(nn.ConvTranspose1d(32, 16, 4)),
        spectral_norm(nn.Linear(32, 64)), spectral_norm(nn.ConvTranspose2d(32, 16, 3)),
    )  # fmt: skip


def recurrent() -> nn.Module:
    """Two of the weights of a layer that has four."""
    lstm = nn.LSTM(32, 32)
    return nn.Sequential(new(new(lstm, "weight_hh_l0"), "weight_ih_l0", dim=1))


def same(a: nn.Module, b: nn.Module) -> None:
    left, right = a.state_dict(), b.state_dict()
    assert left.keys() == right.keys()
    assert [name for name in left if not torch.equal(left[name], right[name])] == []


def flows(model: nn.Module, build: Build, recipe: object, folder: Path, shards: int = 1) -> None:
    """The directory, loaded, is the model quantized in memory."""
    write_model(folder / "float", model.state_dict(), shards)
    told = bs.quantize_directory(folder / "float", folder / "out", recipe)
    found = bs.load(build().to(next(model.parameters()).dtype).eval(), folder / "out")
    expected = bs.quantize_(model, recipe)
    same(found, model)
    details = {entry.name.removesuffix(".weight"): entry.details for entry in told}
    assert {entry.name: entry.details for entry in expected.quantized}.items() <= details.items()


@pytest.mark.some(12)
@pytest.mark.parametrize("build", [several, hooked, recurrent])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_both_flows_give_one_model(build: Build, dtype: torch.dtype, tmp_path: Path) -> None:
    flows(trained(build, dtype), build, "mxfp4", tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("fmt", ["int8", "nvfp4"])
def test_scales_of_whole_weights_in_slabs(
    fmt: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cutting, "SLAB", 100)
    flows(trained(several, torch.float32), several, fmt, tmp_path)


@pytest.mark.slow
def test_parts_in_several_files(tmp_path: Path) -> None:
    flows(trained(several, torch.float32), several, "mxfp4", tmp_path, shards=4)


@pytest.mark.parametrize("kind", ["a chain", "another step", "two dtypes", "one that is shared"])
def test_what_is_not_known_stays_as_it_is(kind: str, tmp_path: Path) -> None:
    layer = new(nn.Linear(32, 32))
    metadata = {}
    if kind == "a chain":
        parametrizations.spectral_norm(layer)
    tensors = {f"x.{name}": each for name, each in layer.state_dict().items()}
    if kind == "another step":
        tensors["x.parametrizations.gain.original"] = torch.ones(4, 4)
    if kind == "two dtypes":
        tensors["x.parametrizations.weight.original0"] = torch.ones(32, 1).bfloat16()
    if kind == "one that is shared":
        metadata["y.parametrizations.weight.original1"] = "x.parametrizations.weight.original1"
    tensors["other.weight"] = torch.randn(32, 32)
    write_model(tmp_path / "float", tensors, metadata=metadata)
    with pytest.warns(UserWarning, match="part of a parametrized weight"):
        ledger = bs.quantize_directory(tmp_path / "float", tmp_path / "out", "mxfp4")
    assert {entry.name for entry in ledger} == tensors.keys()


@pytest.mark.slow
def test_stopped_and_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = trained(several, torch.float32)
    source = write_model(tmp_path / "float", model.state_dict(), 2)
    bs.quantize_directory(source, tmp_path / "whole", "int8")
    real, calls = runs.write_shard, []

    def stop(*args: object) -> None:
        calls.append(1)
        if len(calls) == 2:
            raise KeyboardInterrupt
        real(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(runs, "write_shard", stop)
    with pytest.raises(KeyboardInterrupt):
        bs.quantize_directory(source, tmp_path / "out", "int8")
    monkeypatch.setattr(runs, "write_shard", real)
    bs.quantize_directory(source, tmp_path / "out", "int8")
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")


def test_nan_and_zero_lengths(tmp_path: Path) -> None:
    model = trained(lambda: nn.Sequential(new(nn.Linear(32, 32))), torch.float32)
    with torch.no_grad():
        model[0].parametrizations.weight.original0[:2] = torch.tensor([[0.0], [torch.nan]])
        model[0].parametrizations.weight.original1[3] = 0.0  # 0 / 0
    write_model(tmp_path / "float", model.state_dict())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        bs.quantize_directory(tmp_path / "float", tmp_path / "out", "mxfp4")
        found = bs.load(nn.Sequential(new(nn.Linear(32, 32))).eval(), tmp_path / "out")
        bs.quantize_(model, "mxfp4")
    same(found, model)
