# SPDX-License-Identifier: BSD-3-Clause
"""Codes decoded in registers: settings, and products within the tolerance."""

import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed")

import triton
import triton.language as tl

from blockscale.core.parse import parse
from blockscale.kernels.cuda.matmul.finish import Ends
from blockscale.kernels.cuda.matmul.operands import ProductCall, Weight
from blockscale.kernels.cuda.matmul.reading import reading
from blockscale.kernels.cuda.matmul.tile import (
    GROUP,
    TileSettings,
    fits,
    in_registers,
    place,
    tile,
    usual,
)
from tests.support.cuda_equal import DEVICE, DTYPES
from tests.support.cuda_matmul_exact import excess, stored
from tests.support.some import crossed


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "k"),
    crossed(2, ["mxfp4", "uint4:group128:fp32:asym", "nvfp4", "int8:channel0:fp32"], [256, 320]),
)
def test_products(name: str, k: int) -> None:
    """More tiles than one, the last ones partial, k among one, two and more programs than tiles."""
    words = 16 if "group128" in name else 32
    each = (
        TileSettings(16, 16, words, 4, 1), TileSettings(16, 16, 16, 4, 1, 2),
        TileSettings(16, 32, 16, 4, 1, 9), TileSettings(16, 16, 16, 4, 1, 1, 2),
    )  # fmt: skip
    fmt, n, m = str(parse(name)), 18, 9
    weight = Weight(*stored(torch.randn(n, k, device=DEVICE), fmt))
    r, bias = reading(fmt, k), torch.randn(n, device=DEVICE)
    for i, settings in enumerate(each):
        dtype = DTYPES[(i + len(fmt)) % 3]
        x, row = torch.randn(m, k, device=DEVICE).to(dtype), torch.rand(m, device=DEVICE) + 0.5
        y = tile(x, weight, fmt, r, Ends(row, bias), settings, torch.float32)
        assert excess(y, x.float() * row[:, None], weight, fmt, bias=bias) <= 1, (dtype, settings)


def test_which_tiles_fit() -> None:
    call = ProductCall("weight", "", 16, 512, 512)
    rows, blocks = reading("int4:channel0:fp32", 512), reading("int4:group128:fp32", 512)
    assert fits(call, rows, TileSettings(16, 64, 64, 4, 3))
    assert fits(call, blocks, TileSettings(16, 64, 16, 4, 3))
    assert not fits(call, blocks, TileSettings(16, 64, 64, 4, 3))  # 64 words are four blocks
    assert fits(call, rows, TileSettings(16, 64, 32, 4, 3, 1, 2))
    assert not fits(call, rows, TileSettings(16, 64, 32, 4, 3, 2, 2))  # half a turn for a program
    assert not fits(call, reading("int3:group64:fp32", 512), TileSettings(16, 64, 64, 4, 3))


def test_what_is_decoded_on_its_way() -> None:
    for name, expected in (("mxfp4", True), ("int4", True), ("int4:group32:fp32", False),
                           ("int3:group64:fp32", False), ("ternary", True)):  # fmt: skip
        assert in_registers(reading(str(parse(name)), 4096)) == expected, name


def test_enough_programs() -> None:
    r = reading("e2m1:group32:e8m0/floor", 8192)
    for rows, n, expected in (
        (1, 28672, TileSettings(16, 128, 32, 4, 3, 2)),
        (16, 1024, TileSettings(16, 128, 32, 4, 3, 8)),
        (100, 28672, TileSettings(128, 128, 16, 8, 3, 2)),
    ):  # fmt: skip
        assert usual(ProductCall("weight", "", rows, n, 8192), r) == expected


def test_a_table_has_its_numbers() -> None:
    settings = TileSettings(16, 64, 32, 4, 3, 2, 5)
    assert settings.entry() == (16, 64, 32, 4, 3, 2, 5)
    assert TileSettings.read(settings.entry()) == settings
    assert TileSettings.read([16, 64, 32, 4, 3]) == TileSettings(16, 64, 32, 4, 3, 1, 1)


@triton.jit
def _places(out, rows, n, BM: tl.constexpr, BN: tl.constexpr):  # noqa: N803
    pid = tl.program_id(0)
    pm, pn = place(pid, rows, n, BM, BN)
    tl.store(out + 2 * pid, pm)
    tl.store(out + 2 * pid + 1, pn)


@pytest.mark.parametrize(("rows", "n"), [(1, 1), (16, 33), (130, 70), (16 * 8, 16), (16 * 17, 100)])
def test_every_tile_has_a_program(rows: int, n: int) -> None:
    """Each once; and in a run of programs, no more tiles of rows than share what they read."""
    down, across = -(-rows // 16), -(-n // 32)
    out = torch.full((down * across, 2), -1, dtype=torch.int32, device=DEVICE)
    _places[(down * across,)](out, rows, n, BM=16, BN=32)
    each = [tuple(pair) for pair in out.tolist()]
    assert sorted(each) == [(m, n) for m in range(down) for n in range(across)]
    run = GROUP.value * across
    for first in range(0, len(each), run):
        assert len({m for m, _ in each[first : first + run]}) <= GROUP.value
