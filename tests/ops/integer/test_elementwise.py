# SPDX-License-Identifier: BSD-3-Clause
"""Sums, products and tables."""

import pytest
import torch

from blockscale.ops.integer.elementwise import add, embedding, look_up, mul
from tests.support.integer_oracle import INT8, INT16, LIMITS, shifts, whole
from tests.support.integer_oracle import ended as exactly


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("largest", [2**20, 2**40])
def test_add(largest, sign):
    a, b = whole(0, 255, 4, 5, dtype=torch.uint8), whole(-32768, 32767, 5, dtype=torch.int16)
    found = add(a, b, 9, 0, 3, 0, sign, largest, shifts(5), 0, *LIMITS[INT8], INT8)
    expected = [
        [
            exactly(((x - 9) << 3) + sign * y, 5, 0, -127, 127, "nearest_even")
            for x, y in zip(row, b.tolist(), strict=True)
        ]
        for row in a.tolist()
    ]
    assert found.tolist() == expected


def test_mul():
    a, b = whole(-127, 127, 6, dtype=torch.int8), whole(0, 255, 6, dtype=torch.uint8)
    found = mul(a, b, 0, 30, 2**20, shifts(2), 0, *LIMITS[INT16], INT16)
    pairs = zip(a.tolist(), b.tolist(), strict=True)
    assert found.tolist() == [
        exactly(x * (y - 30), 2, 0, -32767, 32767, "nearest_even") for x, y in pairs
    ]


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.int16])
def test_look_up(dtype):
    """A table is read by the bits of a code: negative codes stand behind the others."""
    size = 2 ** (torch.iinfo(dtype).bits)
    table = torch.arange(size).to(torch.int16 if size > 256 else torch.uint8)
    low, high = torch.iinfo(dtype).min, torch.iinfo(dtype).max
    codes = torch.arange(low, high + 1).to(dtype)
    found = look_up(codes, table)
    assert found.dtype == table.dtype
    assert torch.equal(found, table[codes.long() % size])


def test_embedding():
    weight, indices = whole(-127, 127, 10, 3, dtype=torch.int8), torch.tensor([[1, 9], [0, 1]])
    assert torch.equal(embedding(weight, indices), weight[indices])
