# SPDX-License-Identifier: BSD-3-Clause
"""Weights whose values are rounded to bfloat16 for many rows of x."""

import pytest
import torch

from blockscale.core.operand import UNQUANTIZED, operand
from blockscale.core.parse import parse
from blockscale.kernels.cuda.matmul.composed.rounded import least_rows
from blockscale.kernels.registry import use
from blockscale.ops import primitives as P
from blockscale.ops.linear import linear
from tests.support.cuda_equal import DEVICE

BLOCKS_OF_FLOATS = [
    "int4:group32:fp32",
    "nf4:group64:fp32",
    "uint4:group32:fp16:offset",
    "int4:group8:fp32",
]


@pytest.mark.some(3)
@pytest.mark.parametrize("fmt", [*BLOCKS_OF_FLOATS, "int4:channel0:fp32"])
def test_values_rounded_for_many_rows(fmt: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the weight of a bfloat16 layer, unless exact values cost nothing, or are asked for."""
    k, spelling = 128, str(parse(fmt))
    codes, *rest = P.choose_quantize.reference(torch.randn(9, k), spelling, None)
    parts = P.from_list([part.to(DEVICE) for part in rest], parse(fmt))
    weight = operand(codes.to(DEVICE), parts, spelling, k)
    exact = P.dequantize.reference(weight, torch.float32).cpu()
    x = torch.randn(least_rows(spelling, k) or 40, k).bfloat16()
    with use("cuda"):
        for how in ("", "exact"):
            monkeypatch.setenv("BLOCKSCALE_WEIGHT_PRODUCTS", how)
            y = linear(x.to(DEVICE), weight, None, UNQUANTIZED).cpu().double()
            off = [(y - x.double() @ w.double().T).norm() for w in (exact, exact.bfloat16())]
            assert (off[1] < off[0]) == (not how and fmt in BLOCKS_OF_FLOATS), how
            assert off[0] < 2.0**-7 * y.norm()


def test_from_how_many_rows() -> None:
    for fmt, rows in (
        ("int4:group32:fp32", 512),
        ("int4:group128:fp32", 1024),
        ("nf4:channel0:fp32", 512),
        ("uint4:group32:fp16:offset", 256),
        ("nf4:group64:e4m3", 1),
        ("int4:channel0:fp32", None),
        ("mxfp4", None),
        ("int16:group32:fp32", None),
    ):
        assert least_rows(str(parse(fmt)), 4096) == rows, fmt
