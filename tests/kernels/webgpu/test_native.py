# SPDX-License-Identifier: BSD-3-Clause
"""Software adapters compute with floats of their own, which are exact: the same bits."""

import pytest
import torch

import blockscale as bs
from blockscale.core.parse import parse
from blockscale.kernels.webgpu.gpu import probe
from blockscale.kernels.webgpu.gpu.device import gpu
from blockscale.kernels.webgpu.primitives.form import coding, form
from tests.support.webgpu_textures import differing, hard

FORMATS = [
    "int8:group6:fp32", "mxfp4", "e5m2:group8:e8m0/ceil", "nvfp4", "ternary", "nf4",
    "uint8:group6:fp32:asym", "int8:group4:fp32:offset", "int8:group6:fp32:recip",
    "int8:tensor:bf16",
]  # fmt: skip


@pytest.fixture(autouse=True)
def _native(monkeypatch: pytest.MonkeyPatch) -> None:
    if not gpu().software:
        pytest.skip(f"{gpu().name} is no software")
    monkeypatch.delenv(probe.ARITHMETIC)


def test_it_is_used() -> None:
    own = coding(form("int8"))
    assert (own.device.arithmetic, own.format.approximate) == ("native", "none")


@pytest.mark.some(6)
@pytest.mark.parametrize("fmt", FORMATS)
def test_textures(fmt: str) -> None:
    assert differing(fmt, (5, 18), torch.float32) == []


@pytest.mark.some(8)
@pytest.mark.parametrize("fmt", FORMATS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_buffers(fmt: str, dtype: torch.dtype) -> None:
    x = hard((64, 72), dtype)
    with bs.use("reference"):
        expected = bs.quantize(x, fmt)
        values = expected.dequantize()
    with bs.use("webgpu"):
        found = bs.quantize(x, fmt)
        assert torch.equal(found.packed.view(torch.uint8), expected.packed.view(torch.uint8))
        assert torch.equal(found.dequantize().view(torch.int32), values.view(torch.int32))
        assert parse(fmt) == found.format
