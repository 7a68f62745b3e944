# SPDX-License-Identifier: BSD-3-Clause
"""Formats that the CUDA kernels know only restated, in the interpreter where there is no GPU."""

import pytest
import torch
from torch import nn

import blockscale as bs
from blockscale.core.operand import operand, quantizer
from blockscale.kernels.registry import use
from blockscale.ops import primitives as P
from tests.kernels.restated import FORMATS, UNCHOSEN, awkward, given, runs
from tests.support.cuda_equal import DEVICE, wrong
from tests.support.some import crossed

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy's, of infinities
SHAPES = ((4, 64), (2, 40))
NEW = ("int4:group8:(nf4:group4:fp32):recip", "int4:group8:(uint6:group4:fp16):recip")


@pytest.fixture(autouse=True)
def _here() -> None:
    from blockscale.kernels import cuda

    if reason := cuda.available():
        pytest.skip(reason)
    torch.manual_seed(0)


@pytest.mark.some(3)
@pytest.mark.parametrize("fmt", crossed(3, FORMATS))
def test_every_primitive_has_the_references_bits(fmt: str) -> None:
    if not runs("cuda", "quantize", fmt):
        return  # kernels of its element or offset are not here
    for shape in SHAPES:
        for x in (torch.randn(shape), awkward(shape)):
            assert not wrong(x, fmt), shape


@pytest.mark.some(4)
@pytest.mark.parametrize("fmt", [*FORMATS, *UNCHOSEN])
def test_given_scales_of_either_sign(fmt: str) -> None:
    if not runs("cuda", "quantize", fmt):
        return
    for shape in SHAPES[:1]:
        qparams, x = given(fmt, shape, 1, odd=False), torch.randn(shape)
        seed = torch.tensor([3, 1])
        with bs.use("reference"):
            packed = P.quantize(x, quantizer(qparams, fmt, seed))
            values = P.dequantize(operand(packed, qparams, fmt, shape[-1]), torch.float32)
            rounded = P.fake_quantize(x, quantizer(qparams, fmt, seed))
        there = type(qparams)(*(None if p is None else p.to(DEVICE) for p in qparams))
        with use("cuda"):
            by = quantizer(there, fmt, seed.to(DEVICE))
            found = P.quantize(x.to(DEVICE), by)
            assert torch.equal(found.cpu(), packed)
            again = P.dequantize(operand(found, there, fmt, shape[-1]), torch.float32)
            assert torch.equal(again.cpu().nan_to_num(9), values.nan_to_num(9))
            left = P.fake_quantize(x.to(DEVICE), by)
            assert torch.equal(left.cpu().nan_to_num(9), rounded.nan_to_num(9))


@pytest.mark.parametrize("fmt", FORMATS[::3])
def test_layers(fmt: str) -> None:
    if not runs("cuda", "linear", fmt) or not runs("cuda", "quantize", fmt):
        return
    model = nn.Sequential(nn.Linear(64, 16), nn.Embedding(5, 64)).to(DEVICE)
    bs.quantize_(model, fmt)
    x, indices = torch.randn(3, 64, device=DEVICE), torch.tensor([3, 0], device=DEVICE)
    with torch.no_grad():
        with bs.use("reference"):
            expected, rows = model[0](x), model[1](indices)
        with use("cuda"):
            torch.testing.assert_close(model[0](x), expected, rtol=1e-4, atol=1e-4)
            if runs("cuda", "embedding", fmt):
                assert torch.equal(model[1](indices), rows)


def test_formats_that_are_restated_are_not_left_out() -> None:
    assert sum(runs("cuda", "quantize", fmt) for fmt in FORMATS) >= 17
    for fmt in NEW:
        assert not runs("cuda", "quantize", fmt) and runs("cuda", "dequantize", fmt)
