# SPDX-License-Identifier: BSD-3-Clause
"""Codes to values by few core ops: the reference's bits in every format, for any codes."""

import pytest
import torch

import blockscale as bs
from blockscale.export.to_executorch import weights
from blockscale.ops.embedding import embedding
from blockscale.ops.primitives import dequantize

MORE = ("int3:group32:fp32", "int5:channel0:fp16", "uint6:group32:fp32:asym", "int7:tensor:fp32")
TILES = ("int4:tile8x16:fp32", "e2m1:tile4x32:e8m0", "int8:flat32:fp32", "e2m1:group16:e4m3/inv")
FORMATS = (*bs.formats(), *MORE, *TILES)


def tensor(fmt, shape=(24, 80)):
    torch.manual_seed(0)
    x = torch.randn(shape) * torch.logspace(-12, 8, shape[0]).unsqueeze(1)
    x[1] = 0
    return bs.quantize(x, fmt)


def bits(x):
    return x.view(torch.int32)


@pytest.mark.some(4)
@pytest.mark.parametrize("fmt", FORMATS)
def test_values(fmt):
    q = tensor(fmt).operand
    assert weights.plain(q.format)
    assert torch.equal(
        bits(weights.dequantized(q, torch.float32)), bits(dequantize(q, torch.float32))
    )
    assert weights.exact(q)


@pytest.mark.some(4)
@pytest.mark.parametrize("fmt", [f for f in FORMATS if "flat" not in f])
def test_rows(fmt):
    q, ids = tensor(fmt).operand, torch.tensor([[3, 0, 23], [3, 1, 7]])
    theirs = embedding.reference(q, ids, torch.float32)
    assert torch.equal(bits(weights.rows(q, ids, torch.float32)), bits(theirs))


@pytest.mark.parametrize("fmt", ["mxfp6", "nf4", "int5:group32:fp32", "binary", "fp8"])
def test_random_codes(fmt):
    q = tensor(fmt).operand
    wide = torch.randint(0, 256, q.codes.shape, dtype=torch.int32).to(torch.uint8)
    q = q._replace(codes=wide if q.codes.dtype == torch.uint8 else wide.view(q.codes.dtype))
    ours, theirs = weights.dequantized(q, torch.float32), dequantize.reference(q, torch.float32)
    assert torch.equal(ours.isnan(), theirs.isnan())
    assert torch.equal(bits(ours.nan_to_num(7.0)), bits(theirs.nan_to_num(7.0)))


@pytest.mark.filterwarnings("ignore:no cpu kernel:UserWarning")
def test_others_are_not_known():
    for fmt in ("uint4:group32:fp32:offset", "book4:group32:fp32"):
        assert not weights.plain(bs.parse(fmt))
        assert not weights.exact(tensor(fmt).operand)
