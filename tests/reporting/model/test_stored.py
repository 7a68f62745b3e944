# SPDX-License-Identifier: BSD-3-Clause
"""What a report takes from a model's files, ours and those of others."""

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import blockscale as bs
from blockscale.files.inspect import inspect
from blockscale.layers.before import Rotate
from blockscale.reporting.model.stored import ReportedModel


def test_rows_are_those_of_inspect(model):
    with ReportedModel(model) as stored:
        rows = {row.name: row for row in stored.rows()}
    expected = {row.name: row for row in inspect(model).rows}
    assert rows.keys() == expected.keys()
    for name, row in rows.items():
        other = expected[name]
        assert (row.nbytes, row.quantized, row.file) == (other.nbytes, other.quantized, other.file)
        assert row.elements == other.elements
        assert row.format == other.format


def test_a_transform_belongs_to_its_layer(tmp_path):
    layer = nn.Sequential(nn.Linear(32, 8, bias=False))
    bs.quantize_(layer, bs.Recipe("int8", input="int8_token"), before={"0": Rotate(32, 32)})
    bs.save(layer, tmp_path / "m.safetensors")
    with ReportedModel(tmp_path / "m.safetensors") as stored:
        [row] = [row for row in stored.rows() if row.quantized]
        assert row.before.startswith("rotate:32")
        assert row.input
        assert stored.before(row) is not None
    [expected] = [row for row in inspect(tmp_path / "m.safetensors").rows if row.quantized]
    assert row.nbytes == expected.nbytes


def test_floats_come_in_the_layout_of_the_codes(model, source):
    with ReportedModel(model) as stored, ReportedModel(source) as floats:
        rows = {row.name: row for row in stored.rows()}
        conv = floats.floats(rows["conv.weight"])
        plain = floats.tensor("conv.weight")
        assert conv.shape == (6, 4 * 3 * 3)
        assert torch.equal(conv, plain.permute(0, 2, 3, 1).reshape(6, -1))


def test_what_does_not_fit_is_said(model, tmp_path):
    other = {
        "embed.weight": torch.zeros(3, 3),
        "layers.0.proj.weight": torch.zeros(33, 40, dtype=torch.int32),
    }
    save_file(other, tmp_path / "other.safetensors")
    with ReportedModel(model) as stored, ReportedModel(tmp_path / "other.safetensors") as floats:
        rows = {row.name: row for row in stored.rows()}
        for name, said in {
            "embed.weight": "shape",
            "layers.0.proj.weight": "expected floats",
            "head.weight": "no tensor of this name",
        }.items():
            with pytest.raises(bs.FileError, match=said):
                floats.floats(rows[name])


def test_files_of_other_producers(tmp_path):
    codes = torch.randn(16, 32).to(torch.float8_e4m3fn)
    tensors = {"a.weight": codes, "a.weight_scale_inv": torch.ones(1, 1), "b": torch.zeros(3)}
    save_file(tensors, tmp_path / "m.safetensors")
    with ReportedModel(tmp_path / "m.safetensors") as stored:
        rows = {row.name: row for row in stored.rows()}
        assert stored.producer == "FP8 tiles (DeepSeek, transformers)"
        assert rows["a.weight"].quantized
        assert not rows["b"].quantized
        assert stored.files == [tmp_path / "m.safetensors"]
        values = stored.tensor("a.weight").dequantize()
    assert np.array_equal(values.numpy(), codes.float().numpy())
