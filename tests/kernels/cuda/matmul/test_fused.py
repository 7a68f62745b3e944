# SPDX-License-Identifier: BSD-3-Clause
"""What surrounds the fused kernel, which only a Hopper runs (tests/gpu/test_linear_fused.py)."""

import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed")

from blockscale.core.parse import parse
from blockscale.kernels.cuda.matmul.call import Call
from blockscale.kernels.cuda.matmul.fused import add_tail, fits, to_measure, usual
from blockscale.kernels.cuda.matmul.fused_work import FusedSettings
from blockscale.kernels.cuda.matmul.reading import reading
from tests.support.cuda_equal import DEVICE


@pytest.mark.parametrize("bias", [False, True])
def test_what_is_left_of_the_last_wave(bias):
    rows, n, whole, tail = 150, 300, 4, 2
    parts = torch.randn(3, tail, 64, 128, device=DEVICE)
    x_row = torch.rand(rows, device=DEVICE)
    added = torch.randn(n, device=DEVICE) if bias else None
    out = torch.full((rows, n), 7.0, device=DEVICE)
    add_tail[(tail, 4)](
        parts, x_row, added, out, rows, n, whole, tail, COUNT=3, BM=64, BN=128, LINES=16
    )
    expected = torch.full((rows, n), 7.0, device=DEVICE)
    sums = parts[0] + parts[1] + parts[2]
    for i in range(tail):  # 3 by 3 tiles, walked down first
        down, across = (whole + i) % 3 * 64, (whole + i) // 3 * 128
        high, wide = min(64, rows - down), min(128, n - across)
        values = sums[i, :high, :wide] * x_row[down : down + high, None]
        if added is not None:
            values += added[across : across + wide]
        expected[down : down + high, across : across + wide] = values
    assert torch.equal(out, expected)


def test_as_many_rows_as_registers_hold() -> None:
    call = Call("weight", "", 512, 8192, 8192, True)
    for name, rows in (("mxfp4", 256), ("int4", 128), ("int4:group32:fp32", 128), ("binary", 64)):
        settings = usual(call, reading(str(parse(name)), 8192))
        assert settings == FusedSettings(rows, 128), name
    few_tiles = call._replace(rows=64, n=1024)
    assert usual(few_tiles, reading(str(parse("mxfp4")), 8192)) == FusedSettings(64, 64)


@pytest.mark.parametrize("name", ["mxfp4", "int4", "int4:group32:fp32", "mxfp6"])
def test_what_is_measured(name: str) -> None:
    r = reading(str(parse(name)), 8192)
    for rows in (16, 33, 128, 512, 4096):
        call = Call("weight", "", rows, 8192, 8192, True)
        each = to_measure(call, r)
        assert each
        assert len(set(each)) == len(each)
        assert all(fits(call, r, settings) for settings in each)
        assert not any(fits(call._replace(fused=False), r, settings) for settings in each)
        top = 1 << (rows - 1).bit_length()
        assert all(settings.rows <= top for settings in each)
        if rows == 512 and name == "int4:group32:fp32":
            assert {settings.unroll for settings in each} == {1, 2}
