# SPDX-License-Identifier: BSD-3-Clause
"""Pools and means."""

from fractions import Fraction

import pytest
import torch
import torch.nn.functional as F

from blockscale.ops.integer.reductions import max_pool, sum_over, sum_pool
from tests.support.integer_oracle import INT8, LIMITS, rounded, shifts, whole


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.int16])
@pytest.mark.parametrize("dims", [1, 2, 3])
def test_max_pool(dims, dtype):
    ends = torch.iinfo(dtype)
    x = whole(ends.min, ends.max, 2, 3, *[6] * dims, dtype=dtype)
    run = (F.max_pool1d, F.max_pool2d, F.max_pool3d)[dims - 1]
    found = max_pool(x, [3] * dims, [2] * dims, [1] * dims, [1] * dims, True)
    assert torch.equal(found.double(), run(x.double(), 3, 2, 1, 1, True))
    assert found.dtype == dtype


def exactly(acc, divisor, shift):
    values = [Fraction(int(v), divisor) * Fraction(2) ** -shift for v in acc.flatten()]
    flat = [max(-127, min(127, rounded(v, "nearest_even"))) for v in values]
    return torch.tensor(flat).reshape(acc.shape)


@pytest.mark.parametrize("dims", [1, 2, 3])
@pytest.mark.parametrize("shift", [-2, 0, 3])
def test_sum_pool(dims, shift):
    x = whole(0, 255, 2, 3, *[6] * dims, dtype=torch.uint8)
    kernel, stride, padding = [3, 2, 3][:dims], [2, 1, 2][:dims], [1, 1, 0][:dims]
    wide = x.double() - 100
    run = (F.avg_pool1d, F.avg_pool2d, F.avg_pool3d)[dims - 1]
    count = torch.tensor(kernel).prod().item()
    acc = (run(wide, kernel, stride, padding) * count).round()
    for divisor in (1, count):
        found = sum_pool(
            x, kernel, stride, padding, 100, 2**30, divisor, shifts(shift), 0, *LIMITS[INT8], INT8
        )
        assert torch.equal(found.long(), exactly(acc, divisor, shift))


def test_sum_over():
    x = whole(-128, 127, 2, 3, 7, dtype=torch.int8)
    found = sum_over(x, [1, 2], True, 5, 2**20, 21, shifts(-3), 0, *LIMITS[INT8], INT8)
    acc = (x.long() - 5).sum((1, 2), keepdim=True)
    assert torch.equal(found.long(), exactly(acc, 21, -3))
    sums = sum_over(x, [1, 2], False, 5, 2**20, 1, shifts(0), 0, 0, 0, "")
    assert torch.equal(sums.long(), acc.flatten(1)[:, 0])
