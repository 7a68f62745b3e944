# SPDX-License-Identifier: BSD-3-Clause
"""Files and directories of models with transposed convolutions and convolutions in space."""

import copy
import json
import warnings

import pytest
import torch
from torch import Tensor, nn
from typer.testing import CliRunner

import blockscale as bs
from blockscale.cli.app import app
from blockscale.core.recipe import Recipe
from blockscale.export.checkpoints.comparing import compare
from blockscale.files.directory.eligibility import _convolution, known_of
from blockscale.files.directory.model_files import find_files
from blockscale.files.directory.quantize_directory import quantize_directory
from blockscale.files.inspect import inspect
from tests.support.file_models import write_model
from tests.support.saved import bits


class Net(nn.Module):
    """x [batch, 8, n]: each sort of transposed convolution, told by its bias or not."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.ConvTranspose1d(8, 6, 3, stride=2)
        self.grouped = nn.ConvTranspose2d(6, 4, (2, 3), groups=2)
        self.space = nn.Conv3d(4, 5, 2, padding=1)
        self.square = nn.ConvTranspose1d(5, 5, 3, bias=False)
        self.plain = nn.Conv1d(5, 7, 3)

    def forward(self, x: Tensor) -> Tensor:
        y = self.grouped(self.up(x)[..., None])
        return self.plain(self.square(self.space(y[..., None]).flatten(2)))


KNOWN = ("up", "grouped", "space", "plain")  # whose layout shapes and biases tell


def net() -> Net:
    torch.manual_seed(0)
    return Net().eval()


def image() -> Tensor:
    return torch.randn(2, 8, 5, generator=torch.Generator().manual_seed(1))


@pytest.mark.slow
@pytest.mark.some(2)
@pytest.mark.parametrize("fmt", ["mxfp4", "nvfp4", "uint4", "int4:group4:fp32", "ternary"])
def test_saved_and_loaded(fmt: str, tmp_path) -> None:
    model = net()
    bs.quantize_(model, bs.Recipe(fmt, "int8_token", "int8"), strict=True)
    bs.save(model, tmp_path / "m.safetensors")
    for fresh in (net(), net().to("meta")):
        again = bs.load(fresh, tmp_path / "m.safetensors")
        assert bits(again) == bits(model)
        assert torch.equal(again(image()), model(image()))
    layouts = {
        row.name: row.layout for row in inspect(tmp_path / "m.safetensors").rows if row.quantized
    }
    assert layouts["up.weight"] == layouts["square.weight"] == "transposed_channels_last"
    assert layouts["grouped.weight"] == "transposed_channels_last:2"
    assert layouts["space.weight"] == layouts["plain.weight"] == "channels_last"
    told = CliRunner().invoke(app, ["inspect", str(tmp_path / "m.safetensors"), "--json"])
    rows = json.loads(told.stdout)["tensors"]
    assert {row["name"]: row["layout"] for row in rows if row["quantized"]} == layouts


def test_another_number_of_groups_is_another_model(tmp_path) -> None:
    """Rows lie otherwise: the values come back in floats, in their places."""
    model, other = nn.Sequential(nn.ConvTranspose1d(8, 2, 3)), None
    bs.quantize_(model, "int8_channel")
    bs.save(model, tmp_path / "m.safetensors")
    other = nn.Sequential(nn.ConvTranspose1d(8, 4, 3, groups=2))
    other[0].bias = nn.Parameter(torch.zeros(2))
    with pytest.warns(UserWarning, match="dequantized, because their modules cannot hold codes: 0"):
        bs.load(other, tmp_path / "m.safetensors")
    assert type(other[0]) is nn.ConvTranspose1d
    assert torch.equal(other[0].weight, model[0].dequantize_weight())


def test_transforms_are_saved(tmp_path) -> None:
    model = nn.Sequential(nn.ConvTranspose1d(8, 6, 3))
    before = {"0": bs.layers.before.Scale(torch.tensor([2.0, 1, 4, 1, 1, 0.5, 1, 1]))}
    fresh = copy.deepcopy(model)
    bs.quantize_(model, "int8_channel", before=before)
    bs.save(model, tmp_path / "m.safetensors")
    again = bs.load(fresh, tmp_path / "m.safetensors")
    assert bits(again) == bits(model)
    assert torch.equal(again(image()), model(image()))


@pytest.mark.some(2)
@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("fmt", ["int8_channel", "mxfp4", "int4:group4:fp32"])
def test_a_directory(fmt: str, shards: int, tmp_path) -> None:
    """As bs.quantize_ does, where it is told what a layer is; the bias may be in another file."""
    model = write_model(tmp_path / "model", dict(net().state_dict()), shards)
    ledger = quantize_directory(model, tmp_path / "out", bs.Recipe(fmt, "int8_token"))
    assert {e.name for e in ledger.quantized} == {f"{n}.weight" for n in (*KNOWN, "square")}
    expected = net()
    bs.quantize_(expected, bs.Recipe(fmt, "int8_token", skip=["square"]))
    with pytest.warns(
        UserWarning, match=r"cannot hold codes: square\.weight(.|\n)*not applied: square$"
    ):
        loaded = bs.load(net(), tmp_path / "out")
    for name in KNOWN:
        ours, theirs = (m.get_submodule(name).state_dict() for m in (loaded, expected))
        assert ours.keys() == theirs.keys()
        assert all(torch.equal(t, theirs[n]) for n, t in ours.items() if isinstance(t, Tensor))
    stored = bs.quantize(net().square.weight.detach().movedim(1, -1).flatten(1), fmt)
    values = stored.dequantize().reshape(5, 3, 5).movedim(-1, 1)
    assert torch.equal(loaded.square.weight, values)
    found = compare(model, tmp_path / "out")
    assert len(found.differences) == len(net().state_dict())
    assert all(each.sqnr > 10 for each in found.differences)


@pytest.mark.slow
def test_biases_of_a_directory(tmp_path) -> None:
    model = write_model(tmp_path / "model", dict(net().state_dict()))
    recipe = bs.Recipe("int8_channel", bias="int8:tensor:fp32", skip=["square"])
    ledger = quantize_directory(model, tmp_path / "out", recipe)
    assert {e.name for e in ledger.quantized if e.name.endswith("bias")} == {
        f"{n}.bias" for n in KNOWN
    }
    expected = net()
    bs.quantize_(expected, recipe)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loaded = bs.load(net(), tmp_path / "out")
    assert torch.equal(loaded(image()), expected(image()))


def test_what_biases_tell(tmp_path) -> None:
    model = write_model(tmp_path / "model", dict(net().state_dict()), 2)
    known = known_of(find_files(model), Recipe("int8"))
    assert known.biases == {"up": 6, "grouped": 4, "space": 5, "plain": 7}
    assert not known.conv1d
    for shape, bias, layout in (
        ((8, 6, 3), 6, "transposed_channels_last"),
        ((8, 6, 3), 12, "transposed_channels_last:2"),
        ((8, 6, 3), 8, "channels_last"),
        ((8, 6, 3), None, "channels_last"),
        ((8, 6, 3), 18, "channels_last"),  # no layer: 8 inputs are not in three groups
        ((8, 6, 3), 7, "channels_last"),
        ((8, 6, 3), 0, "channels_last"),
        ((8, 0, 3), 6, "channels_last"),
        ((8, 1, 3), 4, "transposed_channels_last:4"),
    ):
        assert _convolution(shape, bias) == layout, (shape, bias)
