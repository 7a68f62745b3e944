# SPDX-License-Identifier: BSD-3-Clause
"""Experts on a GPU: each by kernels of its own codes. Needs CUDA: `pytest -m gpu tests/gpu`."""

import pytest
import torch
import torch.nn.functional as F

import blockscale as bs
from blockscale.core.joined_weights import of_stack
from blockscale.core.parse import parse
from blockscale.ops import grouped_linear
from blockscale.ops.primitives import dequantize

pytestmark = pytest.mark.gpu

FORMATS = ("mxfp4", "nvfp4", "int8_channel", "int4:group32:fp32", "nf4:group64:fp32", "int8")


@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize("spelling", FORMATS)
def test_groups_and_choices(spelling: str, parts: int) -> None:
    """The same codes as on the CPU; products within the bound of `linear`."""
    torch.manual_seed(0)
    weight = torch.randn(4, 96, 128)
    fmt = of_stack(parse(spelling), weight.shape, parts)
    whole = bs.quantize(weight.cuda(), fmt).operand
    assert torch.equal(whole.codes.cpu(), bs.quantize(weight, fmt).packed)
    dense, x = dequantize(whole, torch.float32), torch.randn(7, 128).cuda()
    got = grouped_linear.grouped(x, whole, [0, 3, 3, 7])
    assert got is not None
    for rows, expert in ((slice(0, 3), 1), (slice(3, 7), 3)):
        bound = 2.0**-10 * (x[rows].abs() @ dense[expert].abs().T)
        assert bool(((got[rows] - F.linear(x[rows], dense[expert])).abs() <= bound).all())
    chosen = torch.tensor([3, 1, 1, 0, 3, 3, 2]).cuda()
    each = grouped_linear.each(x.unsqueeze(1), whole, chosen)
    values = grouped_linear.values(whole, chosen, torch.float32)
    assert each is not None
    assert values is not None
    assert torch.equal(values, dense[chosen])
    expected = torch.bmm(x.unsqueeze(1), dense[chosen].mT)
    bound = 2.0**-10 * torch.bmm(x.unsqueeze(1).abs(), dense[chosen].mT.abs())
    assert bool(((each - expected).abs() <= bound).all())
