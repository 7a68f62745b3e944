# SPDX-License-Identifier: BSD-3-Clause
"""Codes decoded in registers: settings, and products within the tolerance."""

import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed")

from blockscale.core.parse import parse
from blockscale.kernels.cuda.matmul.call import Call
from blockscale.kernels.cuda.matmul.finish import Ends
from blockscale.kernels.cuda.matmul.reading import reading
from blockscale.kernels.cuda.matmul.tile import TileSettings, fits, in_registers, tile, usual
from blockscale.kernels.cuda.matmul.weight import Weight
from tests.support.cuda_equal import DEVICE, DTYPES
from tests.support.cuda_matmul_exact import excess, stored
from tests.support.some import crossed


@pytest.mark.some(3)
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
    call = Call("weight", "", 16, 512, 512)
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
        assert usual(Call("weight", "", rows, n, 8192), r) == expected


def test_a_table_has_its_numbers() -> None:
    settings = TileSettings(16, 64, 32, 4, 3, 2, 5)
    assert settings.entry() == (16, 64, 32, 4, 3, 2, 5)
    assert TileSettings.read(settings.entry()) == settings
    assert TileSettings.read([16, 64, 32, 4, 3]) == TileSettings(16, 64, 32, 4, 3, 1, 1)
