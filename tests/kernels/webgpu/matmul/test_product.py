# SPDX-License-Identifier: BSD-3-Clause
"""Pieces of products: what kernels see at once begins where windows may."""

import pytest

from blockscale.kernels.webgpu.gpu.device import gpu
from blockscale.kernels.webgpu.matmul.product import most


@pytest.mark.parametrize("row_bytes", [(1,), (6,), (100, 12), (256,), (384, 96)])
def test_windows_begin_at_multiples(row_bytes: tuple[int, ...], monkeypatch) -> None:
    monkeypatch.setattr(type(gpu()), "binding_limit", property(lambda self: 30000))
    many = most(100000, *row_bytes)
    assert many * max(row_bytes) <= 30000
    assert all(many * each % 256 == 0 for each in row_bytes)
    assert most(3, *row_bytes) == 3
