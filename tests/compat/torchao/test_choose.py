# SPDX-License-Identifier: BSD-3-Clause
"""The scales and zero points are torchao's, bit for bit; the oracle is torchao itself."""

import itertools
import math

import pytest
import torch

from blockscale.compat import torchao as ours
from blockscale.compat.torchao import MappingType
from tests.compat.torchao.inputs import (
    ASYMMETRIC,
    FLOAT8,
    FLOATS,
    INTS,
    STORED,
    SYMMETRIC,
    awkward,
    every_block,
    every_dtype,
    every_mapping,
    overflows,
    same,
    their,
    theirs,
)


@pytest.mark.some(16)
@every_mapping
@every_block
@every_dtype
def test_choose(mapping: MappingType, block: tuple[int, ...], dtype: torch.dtype) -> None:
    x = awkward(dtype)
    for target, scale_dtype in itertools.product((*STORED, *INTS), (None, *FLOATS)):
        for zero_dtype in (torch.int32, None, torch.int16, torch.float32, torch.bfloat16):
            if (zero_dtype == torch.int16 and target in (torch.int32, *FLOAT8)) or (
                mapping is ASYMMETRIC and overflows(target, dtype)
            ):
                continue  # wraps around in torchao, an error here
            args = (block, target, None, None, None, scale_dtype, zero_dtype)
            expected = theirs.choose_qparams_affine(x, their(mapping), *args)
            same(ours.choose_qparams_affine(x, mapping, *args), expected)
    for eps, keepdim, limits in (
        (1e-5, False, (-8, 7)),
        (None, True, (-127, 127)),
        (0.5, True, (0, 9)),
    ):
        if keepdim and -1 in block:
            continue  # torchao divides by -1
        args = (block, torch.int8, *limits, eps, None, torch.int32, keepdim)
        expected = theirs.choose_qparams_affine(x, their(mapping), *args)
        same(ours.choose_qparams_affine(x, mapping, *args), expected)


@every_mapping
@every_dtype
def test_min_max(mapping: MappingType, dtype: torch.dtype) -> None:
    low, high = awkward(dtype).aminmax(dim=1)
    low, high = low.index_fill(0, torch.tensor(15), math.nan), high.clone()
    high[14] = math.inf
    for target, scale_dtype in itertools.product((*STORED, *INTS), (None, *FLOATS)):
        for zero_dtype in (None, torch.float32):
            if mapping is ASYMMETRIC and overflows(target, dtype):
                continue
            if zero_dtype is None and mapping is ASYMMETRIC:
                low[15] = 0  # NaN has no int32
            args = ((1, 64), target, None, None, None, scale_dtype, zero_dtype)
            expected = theirs.choose_qparams_affine_with_min_max(low, high, their(mapping), *args)
            same(ours.choose_qparams_affine_with_min_max(low, high, mapping, *args), expected)


def test_blocks_of_one_element_have_a_scale_each() -> None:
    x = torch.randn(4, 6)
    for keepdim in (False, True):
        args = (ASYMMETRIC, (1, 1), torch.uint8, None, None, None, None, torch.int32, keepdim)
        scale, zero = ours.choose_qparams_affine(x, *args)
        same(scale, x.abs() / 255)
        assert zero.shape == x.shape
    scale, _ = ours.choose_qparams_affine(x[:1, :1], SYMMETRIC, (1, 1), torch.int8)
    assert scale.shape == ()  # as torchao: one element is one tensor
