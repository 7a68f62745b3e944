# SPDX-License-Identifier: BSD-3-Clause
"""Tables and the door: kernels give the reference's integers."""

import math

import pytest
import torch

import blockscale as bs
from blockscale.kernels.cpu.integer.look_up import _under_one
from blockscale.kernels.registry import supporting, unavailable
from blockscale.ops.integer import INTEGER_OPS
from tests.kernels.cpu.integer.equal import equal
from tests.support.integer_oracle import INT8, INT16, UINT8, whole

pytestmark = pytest.mark.skipif(unavailable("cpu") is not None, reason=str(unavailable("cpu")))


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8])
@pytest.mark.parametrize("to", [torch.int8, torch.uint8, torch.int16, torch.int32])
def test_look_up(dtype, to):
    ends = torch.iinfo(to)
    table = whole(ends.min, ends.max, 256, dtype=to)
    codes = whole(torch.iinfo(dtype).min, torch.iinfo(dtype).max, 5, 333, dtype=dtype)
    equal("integer_look_up", codes, table)
    equal("integer_look_up", codes.t(), table)


@pytest.mark.parametrize("to", [torch.int8, torch.uint8, torch.int16, torch.int32])
def test_look_up_of_16_bits(to):
    """Every code there is, in an order of its own, in several units and a part of one."""
    ends = torch.iinfo(to)
    table = whole(ends.min, ends.max, 65536, dtype=to)
    every = torch.arange(-(2**15), 2**15).to(torch.int16)[torch.randperm(65536)]
    equal("integer_look_up", every.reshape(256, 256), table)
    equal("integer_look_up", every.reshape(256, 256).t()[:255, 1:], table)


def test_other_tables_are_the_reference_s():
    narrow, wide = torch.zeros(3, dtype=torch.int8), torch.zeros(3, dtype=torch.int16)
    for codes, entries, dtype in (
        *((narrow, 256, torch.int64), (wide, 65536, torch.int64)),
        *((wide, 256, torch.int8), (narrow, 65536, torch.int8)),
    ):
        args = (codes, torch.zeros(entries, dtype=dtype))
        assert supporting("integer_look_up", "cpu", (), args) is None


@pytest.mark.parametrize("fmt", [INT8, UINT8, INT16, INT8 + ":nearest_away"])
def test_quantize(fmt):
    x = torch.cat([torch.arange(-600, 600) / 2, torch.tensor([math.nan, math.inf, 1e38])])
    for exponent in (-126, -3, 0, 4, 127):
        equal("integer_quantize", x * 2.0**exponent, exponent, 9 if fmt == UINT8 else 0, fmt)


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.int16, torch.int32])
def test_dequantize(dtype):
    ends = torch.iinfo(dtype)
    x = torch.cat(
        [whole(ends.min, ends.max, 500, dtype=dtype), whole(ends.max, ends.max, 1, dtype=dtype)]
    )
    for exponent in (-126, -9, 0, 90):
        equal("integer_dequantize", x, 0 if dtype == torch.int32 else 77, exponent)


@pytest.mark.parametrize("dtype", [torch.int8, torch.int16, torch.int32])
def test_what_lies_channels_last_comes_out_in_order(dtype):
    for shape in ((2, 5, 4, 3), (2, 7, 3), (1, 1, 1, 1)):
        codes = whole(-99, 99, *shape, dtype=dtype).movedim(-1, 1)
        equal("integer_dequantize", codes, 0, -3)
        assert INTEGER_OPS["integer_dequantize"](codes, 0, -3).is_contiguous()
        with bs.use("reference"):
            assert INTEGER_OPS["integer_dequantize"](codes, 0, -3).is_contiguous()
    equal("integer_dequantize", codes.new_zeros((2, 3, 0, 4)).movedim(-1, 1), 0, 1)
    equal("integer_dequantize", codes.flatten()[0], 0, 1)


def test_formats_keep_their_codes():
    for fmt in (INT8, UINT8, "int8:tensor:e8m0/rceil:full:down", "int16:tensor:pow2/ceil"):
        mine, theirs = bs.parse(_under_one(fmt)), bs.parse(fmt)
        assert mine.rounding == theirs.rounding and str(mine.scale) == "fp32"
        assert mine.element.limits(mine.wide) == theirs.element.limits(theirs.wide)
