# SPDX-License-Identifier: BSD-3-Clause
"""Codes times codes: when they meet, settings, and products that are exact."""

import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed")

from blockscale.kernels.cuda.matmul.codes import (
    CodesSettings,
    LibrarySettings,
    codes,
    multiply_codes,
    pair,
)
from blockscale.kernels.cuda.matmul.finish import Ends
from blockscale.kernels.cuda.matmul.operands import Codes, Weight
from tests.support.cuda_equal import DEVICE


@pytest.mark.parametrize("k", [64, 200])
def test_sums_of_integers_are_exact(k: int) -> None:
    """More tiles than one, the last ones partial, against int64; factors and bias after the sum."""
    n, m, fmt = 18, 9, "int8:channel0:fp32:full"
    left, right = (
        torch.randint(-128, 128, (rows, k), device=DEVICE).to(torch.int8) for rows in (m, n)
    )
    scale, row = (
        2.0 ** torch.randint(-3, 3, (n, 1), device=DEVICE).float(),
        torch.ones(m, device=DEVICE) / 2,
    )
    bias = torch.randint(-9, 9, (n,), device=DEVICE).float()
    x, weight = Codes(left, "int8", row, k), Weight(right, scale, None, None)
    exact = (left.double() @ right.double().T) * scale.double().T / 2
    for settings in (CodesSettings(16, 16, 32, 4, 1), CodesSettings(16, 32, 64, 4, 1)):
        for offset in (bias, None):
            y = codes(x, weight, fmt, Ends(row, offset), settings, torch.float32)
            assert torch.equal(y.double(), exact if offset is None else exact + offset.double())


def test_which_codes_meet(monkeypatch: pytest.MonkeyPatch) -> None:
    bf16, fp32 = torch.bfloat16, torch.float32
    assert pair("int8:channel0:fp32", "int8", 4096, fp32) == "int8"
    assert pair("int8:tensor:fp32", "int8", 4096, bf16) == "int8"
    assert pair("int8:channel0:fp32", "int8", 2**17, fp32) == ""  # sums that no int32 holds
    assert pair("int8:group32:fp32", "int8", 4096, fp32) == ""
    assert pair("int8:group32:fp32", "int8", 32, fp32) == "int8"  # one block is all of a row
    assert pair("uint8:channel0:fp32:asym", "int8", 4096, fp32) == ""
    assert pair("int8:channel0:fp32", "e4m3", 4096, bf16) == ""
    assert pair("e4m3:channel0:fp32", "e5m2", 4096, bf16) == "fp8"
    assert pair("e5m2:channel0:fp32", "e5m2", 4096, bf16) == ""  # no tensor core multiplies these
    assert pair("e4m3:channel0:fp32", "e4m3", 4096, fp32) == ""  # which shows what they drop
    monkeypatch.setenv("BLOCKSCALE_FLOAT8_SUMS", "exact")
    assert pair("e4m3:channel0:fp32", "e4m3", 4096, bf16) == ""


def test_a_table_has_seven_numbers_or_none() -> None:
    settings = CodesSettings(16, 128, 256, 4, 3)
    assert settings.entry() == (16, 128, 256, 4, 3, 1, 1)
    assert CodesSettings.read(settings.entry()) == settings
    assert LibrarySettings().entry() == ()
    assert LibrarySettings.read([]) == LibrarySettings()


@pytest.mark.some(2)
@pytest.mark.parametrize(("block", "inner"), [(0, 1), (32, 1), (32, 2), (64, 2)])
@pytest.mark.parametrize("k", [96, 128])
def test_whole_numbers_are_exact(block: int, inner: int, k: int) -> None:
    """Sums of each block get its scale; rows and outputs that fill no tile; k that is no tile."""
    rows, n = 20, 18
    x = torch.randint(-8, 9, (rows, k), device=DEVICE).float()
    w = torch.randint(-8, 9, (n, k), device=DEVICE).float()
    steps = 2.0 ** torch.randint(-2, 3, (n, -(-k // (block or k))), device=DEVICE).float()
    out = torch.full((rows, n), 77.0, device=DEVICE)
    factors = torch.arange(1.0, n + 1, device=DEVICE)
    tile = 16
    multiply_codes[(-(-rows // 16) * -(-n // 16),)](
        x.bfloat16(), w.bfloat16(), None, factors, steps if block else None, None, out,
        rows, n, k, k, k, 1, steps.shape[1],
        KIND="bfloat16", BM=16, BN=16, BK=tile, STEPS=-(-k // (tile * (inner if block else 1))),
        BLOCK=block, INNER=inner if block else 1, WHOLE=k % (tile * inner) == 0,
    )  # fmt: skip
    by = steps.repeat_interleave(block, 1)[:, :k] if block else 1.0
    expected = (x.double() @ (w * by).double().T) * factors.double()
    assert torch.equal(out.double(), expected)
