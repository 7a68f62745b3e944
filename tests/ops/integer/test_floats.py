# SPDX-License-Identifier: BSD-3-Clause
"""Floats in and out, as quantize and dequantize have it."""

import math

import pytest
import torch

import blockscale as bs
from blockscale.ops.integer.elementwise import dequantize, quantize

FORMATS = ("int8:tensor:pow2/nearest", "uint8:tensor:pow2/nearest:asym", "int16:tensor:pow2/ceil",
           "int8:tensor:pow2/nearest:full:nearest_away", "int4:tensor:pow2/floor")  # fmt: skip


@pytest.mark.pairs
@pytest.mark.parametrize("backend", ["auto", "reference"])
@pytest.mark.parametrize("fmt", FORMATS)
@pytest.mark.parametrize("exponent", [-126, -7, 0, 5, 127])
def test_quantize(fmt, exponent, backend):
    steps = torch.cat([torch.arange(-300, 300) / 2, torch.tensor([math.nan, math.inf, -math.inf])])
    x = steps * 2.0**exponent
    zero = 9 if "asym" in fmt else 0
    point = torch.tensor([zero], dtype=torch.int32) if zero else None
    scale = torch.tensor([2.0**exponent])
    expected = bs.quantize(x, fmt, scale=scale, zero_point=point).codes
    with bs.use(backend):
        found = quantize(x, exponent, zero, fmt)
    assert torch.equal(found, expected) and found.dtype == expected.dtype


def test_dequantize():
    codes = torch.tensor([-128, 0, 127], dtype=torch.int8)
    assert dequantize(codes, 3, -2).tolist() == [-131 / 4, -3 / 4, 31]
    sums = torch.tensor([2**24 + 1, -(2**31) + 1], dtype=torch.int32)
    assert dequantize(sums, 0, -4).tolist() == [2.0**20, -(2.0**27)]  # float32 rounds once
