# SPDX-License-Identifier: BSD-3-Clause
"""A checkpoint as a stored model: the names, kinds and parts that `bs.load` asks for."""

import pytest
import torch
from torch import nn

import blockscale as bs
from blockscale.export.checkpoints.as_stored import as_stored
from tests.export.checkpoints.layouts.recorded import cases, directory


def opened(path, producer, case):
    stored, values, config = cases(producer)[case]
    return bs.checkpoint(directory(path / "d", stored, config)), values


def test_parts(tmp_path):
    checkpoint, values = opened(tmp_path, "gptq", "4act")
    found = as_stored(nn.ModuleDict({"a": nn.Linear(128, 32, bias=False)}), checkpoint)
    assert found.plain() == set() and found.metadata.before("a") == "order"
    parts = found.parts_of("a.weight") | found.before_parts("a")
    assert set(parts) == {"codes", "scale", "zero_point", "order"}
    tensors = found.read(list(parts.values()))
    assert {n: (t.dtype, tuple(t.shape)) for n, t in tensors.items()} == dict(found.kinds)
    order = tensors["a.before.order"].long()
    codes = checkpoint["a.weight"].dequantize()
    back = torch.empty_like(codes).index_copy_(1, order, codes)
    assert torch.equal(back.half(), values)


def test_a_shape_that_is_not_in_the_file(tmp_path):
    stored, values, config = cases("quanto")["qint4 bytes fp32"]
    del (stored := dict(stored))["a.bias"]
    checkpoint = bs.checkpoint(directory(tmp_path / "d", stored, config))
    assert checkpoint.stored["a.weight"].shape == (32, 128)
    model = nn.ModuleDict({"a": nn.Linear(256, 16, bias=False)})
    info = as_stored(model, checkpoint).metadata.tensors["a.weight"]
    assert (info.format, info.shape) == ("uint4:group128:fp32:offset", (16, 256))
    bs.load(model, checkpoint.path)
    assert torch.equal(model["a"].dequantize_weight(), values)
    other = nn.ModuleDict({"a": nn.Linear(255, 16, bias=False)})
    with pytest.raises(bs.FileError, match="this model's has"):
        bs.load(other, checkpoint.path)


def test_zeros_in_the_place_of_a_bias(tmp_path):
    stored, _, config = cases("awq")["gemm"]
    model = nn.ModuleDict({"a": nn.Linear(128, 32, bias=False)})
    path = directory(tmp_path / "d", stored | {"a.bias": torch.zeros(32)}, config)
    with bs.checkpoint(path) as checkpoint:
        assert as_stored(model, checkpoint).plain() == set()
    biased = nn.ModuleDict({"a": nn.Linear(128, 32)})
    with bs.checkpoint(path) as checkpoint:
        assert as_stored(biased, checkpoint).plain() == {"a.bias"}
