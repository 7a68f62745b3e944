# SPDX-License-Identifier: BSD-3-Clause
"""Rows of a table of floats, as formats that are not decoded have it."""

import torch

from blockscale.kernels.webgpu.gpu.memory import download, upload
from blockscale.kernels.webgpu.matmul.factors import Places, floats
from blockscale.kernels.webgpu.matmul.rows import rows


def test_rows_of_floats() -> None:
    table = torch.randn(9, 7)
    right = floats(upload(table), torch.float32, 9, Places(0, 0, 7, 1))
    indices = torch.tensor([8, 0, 0, 5])
    for dtype in (torch.float32, torch.bfloat16):
        found = download(rows(right, 7, indices, dtype), (4, 7), dtype)
        assert torch.equal(found, table[indices].to(dtype))
