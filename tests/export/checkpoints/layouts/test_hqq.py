# SPDX-License-Identifier: BSD-3-Clause
"""HQQ: settings, and what is refused. Values: test_recorded.py."""

import pytest
import torch

import blockscale as bs
from tests.export.checkpoints.layouts.recorded import cases, directory

STORED, VALUES, CONFIG = cases("hqq")["4 normal"]


def opened(path, stored):
    kept = {name: tensor for name, tensor in stored.items() if tensor is not None}
    return bs.checkpoint(directory(path / "d", kept, CONFIG))


@pytest.mark.parametrize(
    ("case", "fmt"),
    [
        ("4 normal", "uint4:group64:fp32:asym(fp32)"),
        ("3 axis 0 fp16", "uint3:flat32@0:fp16:asym(fp16)"),
        ("1 axis 1 fp16", "uint1:group64:fp16:asym(fp16)"),
        ("4 across rows", "uint4:flat64:fp16:asym(fp16)"),
        ("4 axis 1 bf16", "uint4:group64:bf16:asym(bf16)"),
    ],
)
def test_formats(case, fmt, tmp_path):
    stored, values, config = cases("hqq")[case]
    with bs.checkpoint(directory(tmp_path / "d", stored, config)) as found:
        assert found.stored["a.weight"].format == fmt
        assert found.stored["a.weight"].shape == tuple(values.shape)
        assert set(found) == {"a.weight"}  # settings are no weights


@pytest.mark.parametrize(
    ("others", "told"),
    [
        ({"a.nbits": None}, "its nbits is missing"),
        ({"a.quant_zero": torch.tensor(1, dtype=torch.uint8)}, "are themselves quantized"),
        ({"a.packing": torch.tensor(list(b"5bit")).byte()}, "its packing is '5bit' for 4 bits"),
        ({"a.nbits": torch.tensor(3)}, "its packing is '4bit_u8' for 3 bits"),
        ({"a.axis": torch.tensor(2)}, "along axis 2 do not divide"),
        ({"a.group_size": torch.tensor(0)}, "groups of 0 along axis 1 do not divide"),
        ({"a.group_size": torch.tensor(63)}, "groups of 63"),
        ({"a.shape": torch.tensor([-16, -128])}, "do not divide its shape"),
        ({"a.scale": torch.ones(32, 1).double()}, "its scales are torch.float64"),
    ],
)  # fmt: skip
def test_what_is_refused(others, told, tmp_path):
    with opened(tmp_path, STORED | others) as found:
        assert told in found.stored["a.weight"].unread


@pytest.mark.parametrize(
    ("others", "told"),
    [
        ({"a.shape": torch.tensor([32, 128])}, "its codes take 1024 words"),
        ({"a.scale": torch.ones(31, 1)}, "its scale has 31 numbers of float32"),
    ],
)
def test_parts_of_other_sizes(others, told, tmp_path):
    with opened(tmp_path, STORED | others) as found, pytest.raises(bs.FileError, match=told):
        found["a.weight"]
