# SPDX-License-Identifier: BSD-3-Clause
"""Values as two bfloat16 each: what the two leave, and products of many rows."""

import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed")

from blockscale.core.operand import Operand, operand
from blockscale.core.parse import parse
from blockscale.kernels.cuda.matmul.composed.halves import LEAST, halves, takes
from blockscale.kernels.cuda.matmul.finish import NO_ENDS, Ends
from blockscale.kernels.cuda.quantize import decoded, dequantize
from blockscale.ops import primitives as P
from tests.support.cuda_equal import DEVICE

FORMATS = ["nf4:group64:fp32", "nf4:group16:e4m3", "nf4:group64:fp32:offset"]


def weight(fmt: str, n: int, k: int) -> tuple[Operand, torch.Tensor]:
    codes, *parts = P.choose_quantize.reference(torch.randn(n, k).to(DEVICE), fmt, None)
    stored = operand(codes, P.from_list(parts, parse(fmt)), fmt, k)
    return stored, P.dequantize.reference(stored, torch.float32).double()


@pytest.mark.parametrize("fmt", FORMATS)
def test_two_bfloat16_are_nearly_the_value(fmt: str) -> None:
    stored, values = weight(fmt, 8, 256)
    upper, lower = dequantize(stored, torch.bfloat16), decoded(stored, torch.bfloat16, "rest")
    assert torch.equal(upper, values.to(torch.bfloat16))
    assert torch.equal(lower, (values - upper.double()).to(torch.bfloat16))
    lost = (values - upper.double() - lower.double()).abs()
    assert bool((lost <= 2.0**-17 * values.abs()).all()) and bool(lost.any())


@pytest.mark.parametrize("fmt", FORMATS)
def test_products(fmt: str) -> None:
    """As many units as the contract allows, before the result is rounded."""
    stored, values = weight(fmt, 5, LEAST)
    x, row, bias = torch.randn(70, LEAST), torch.rand(70) + 0.5, torch.randn(5)
    x, row, bias = x.to(DEVICE).bfloat16(), row.to(DEVICE), bias.to(DEVICE)
    for ends in (NO_ENDS, Ends(row, bias)):
        y = halves(x, stored, ends, torch.bfloat16).double()
        left = x.double() * (1 if ends.x_row is None else row[:, None])
        added = 0 if ends.bias is None else bias.double()
        exact = left @ values.T + added
        size = left.abs() @ values.abs().T + abs(added)
        bound = LEAST / 8 * 2.0**-24 * size
        assert bool(((y - exact).abs() <= bound + 2.0**-8 * (exact.abs() + bound)).all())


def test_what_it_takes() -> None:
    long, short = torch.zeros(2, LEAST), torch.zeros(2, LEAST - 1)
    assert takes(long.bfloat16(), torch.bfloat16)
    assert not takes(short.bfloat16(), torch.bfloat16)
    assert not takes(long.half(), torch.float16)
    assert not takes(long.bfloat16(), torch.float32)
