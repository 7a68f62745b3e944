# SPDX-License-Identifier: BSD-3-Clause
"""Bytes are the same, or one bit of one of them is not."""

import pytest
import torch

from blockscale.export.conversion.same_bytes import same_bytes


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("count", [1, 3, 8, 37])
def test_every_place(dtype: torch.dtype, count: int) -> None:
    a = torch.arange(count).to(dtype)
    assert same_bytes(a, a.clone()) and same_bytes(a[None], a.clone()[None])
    assert not same_bytes(a, a[None]) and not same_bytes(a, a.view(torch.int8))
    for place in range(count * dtype.itemsize):
        b = a.clone()
        b.view(torch.uint8)[place] ^= 1 << place % 8
        assert not same_bytes(a, b)


def test_nan_zeros_strides_and_nothing() -> None:
    a = torch.tensor([[torch.nan, 0.0, 1.0], [2.0, 3.0, 4.0]])
    assert same_bytes(a, a.clone()) and same_bytes(a.t(), a.t().contiguous())
    assert not same_bytes(a, torch.where(a == 0, -0.0, a))
    assert same_bytes(torch.empty(0, 4), torch.empty(0, 4)) and same_bytes(a[1:, 1:], a[1:, 1:])
    assert same_bytes(torch.tensor(2.0), torch.tensor(2.0))
