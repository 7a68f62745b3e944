# SPDX-License-Identifier: BSD-3-Clause
"""Rows of quantized tables on the GPU equal the reference's, bit for bit."""

import pytest
import torch

import blockscale as bs
from blockscale.kernels.webgpu.embedding import rows
from blockscale.kernels.webgpu.gpu.device import gpu
from blockscale.kernels.webgpu.gpu.memory import download, upload
from blockscale.kernels.webgpu.gpu.probe import wrongly_computed
from blockscale.kernels.webgpu.matmul.factors import Places, floats
from blockscale.ops.embedding import embedding
from tests.kernels.webgpu.matmul.exact import stored
from tests.support.same import same

QUICK = ("int8_channel", "nvfp4", "uint4:group32:fp16:offset", "int4:flat32:fp32")
MORE = (
    *("mxfp4", "mxfp8", "fp8", "nf4", "uint4", "int16", "binary", "ternary", "mxfp6", "bfp16"),
    *("int3:group16:fp16", "int8:tile16x32:fp32", "int4:flat32@0:fp32", "int5:group7:fp32"),
)


def wrong(fmt: str, size: int, dtype: torch.dtype, kind: torch.dtype = torch.int64) -> bool:
    torch.manual_seed(0)
    table = stored(torch.randn(64, size) * torch.logspace(-44, 38, 64)[:, None], fmt)
    indices = torch.randint(0, 64, (5, 9)).to(kind)
    with bs.use("webgpu"):
        found = embedding(table, indices, dtype)
    with bs.use("reference"):
        return not same(found, embedding(table, indices, dtype))


@pytest.mark.parametrize("fmt", QUICK)
def test_rows_equal_the_reference(fmt: str) -> None:
    assert not wrong(fmt, 64, torch.float32)
    assert not wrong(fmt, 96, torch.float16, torch.int32)


@pytest.mark.slow
@pytest.mark.parametrize("fmt", (*QUICK, *MORE))
def test_every_kind_of_format(fmt: str) -> None:
    for size in (64, 160, 33):
        for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.float64):
            assert not wrong(fmt, size, dtype), (size, dtype)


def test_an_odd_number_of_columns() -> None:
    assert not wrong("int8_channel", 33, torch.bfloat16)


def test_more_than_kernels_see_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    wrongly_computed()  # which the limit is too small for
    monkeypatch.setattr(type(gpu()), "binding_limit", property(lambda self: 2048))
    assert not wrong("int8_channel", 64, torch.float32)


def test_rows_that_do_not_exist() -> None:
    table = stored(torch.randn(4, 32), "int8_channel")
    with bs.use("webgpu"):
        for bad in (-1, 4):
            with pytest.raises(IndexError, match=f"a table of 4 rows has none of {bad}"):
                embedding(table, torch.tensor([0, bad]), torch.float32)
        with pytest.raises(TypeError, match="int32 or int64"):
            embedding(table, torch.tensor([1.0]), torch.float32)
        none = torch.zeros(0, 3, dtype=torch.int64)
        assert embedding(table, none, torch.float32).shape == (0, 3, 32)


def test_a_table_and_indices_on_the_gpu() -> None:
    device, table = bs.webgpu(), stored(torch.randn(8, 32), "int8_channel")
    there = table._replace(codes=table.codes.to(device), scale=table.scale.to(device))
    indices = torch.tensor([7, 0, 3])
    found = embedding(there, indices.to(device), torch.float32)
    with bs.use("reference"):
        assert same(found.cpu(), embedding(table, indices, torch.float32))
    with pytest.raises(IndexError):
        embedding(there, torch.tensor([8]).to(device), torch.float32)


def test_rows_of_floats() -> None:
    table = torch.randn(9, 7)
    right = floats(upload(table), torch.float32, 9, Places(0, 0, 7, 1))
    indices = torch.tensor([8, 0, 0, 5])
    for dtype in (torch.float32, torch.bfloat16):
        found = download(rows(right, 7, indices, dtype), (4, 7), dtype)
        assert torch.equal(found, table[indices].to(dtype))
