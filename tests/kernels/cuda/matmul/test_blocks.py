# SPDX-License-Identifier: BSD-3-Clause
"""Sums of blocks that get scales: settings, and products within the tolerance."""

import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed")

from blockscale.core.parse import parse
from blockscale.kernels.cuda.matmul.blocks import BlocksSettings, blocks, fits, usual
from blockscale.kernels.cuda.matmul.finish import Ends
from blockscale.kernels.cuda.matmul.operands import ProductCall, Weight
from blockscale.kernels.cuda.matmul.reading import reading
from tests.support.cuda_equal import DEVICE, DTYPES
from tests.support.cuda_matmul_exact import excess, stored


@pytest.mark.some(2)
@pytest.mark.parametrize(
    "name",
    ["int4:group64:fp32", "int3:group64:fp16", "uint4:group64:bf16:asym", "int8:tile4x64:fp32"],
)
def test_products(name: str) -> None:
    """More tiles than one, the last ones partial; blocks of one tile and of several."""
    k = 160
    each = (
        BlocksSettings(16, 16, 64, 4, 1), BlocksSettings(16, 16, 32, 4, 1, 2),
        BlocksSettings(32, 16, 16, 4, 1),
    )  # fmt: skip
    fmt, n, m = str(parse(name)), 18, 9
    weight = Weight(*stored(torch.randn(n, k, device=DEVICE), fmt))
    r, bias = reading(fmt, k), torch.randn(n, device=DEVICE)
    for i, settings in enumerate(each):
        dtype = DTYPES[(i + len(fmt)) % 3]
        x, row = torch.randn(m, k, device=DEVICE).to(dtype), torch.rand(m, device=DEVICE) + 0.5
        y = blocks(x, weight, fmt, r, Ends(row, bias), settings, torch.float32)
        assert excess(y, x.float() * row[:, None], weight, fmt, bias=bias) <= 1, (dtype, settings)


def test_which_tiles_fit() -> None:
    call, r = ProductCall("weight", "", 300, 512, 512), reading("int4:group48:fp32", 480)
    assert fits(call, r, BlocksSettings(128, 128, 16, 8, 3))
    assert not fits(call, r, BlocksSettings(128, 128, 32, 8, 3))
    assert not fits(call, r, BlocksSettings(128, 128, 16, 8, 3, 2))
    assert usual(call, r) == BlocksSettings(128, 128, 16, 8, 4)
    assert not fits(
        call, reading("e2m1:group32:e8m0/floor", 512), BlocksSettings(128, 128, 16, 8, 3)
    )


def test_a_table_has_seven_numbers() -> None:
    settings = BlocksSettings(128, 64, 32, 8, 4, 2)
    assert settings.entry() == (128, 64, 32, 8, 4, 1, 2)
    assert BlocksSettings.read(settings.entry()) == settings
