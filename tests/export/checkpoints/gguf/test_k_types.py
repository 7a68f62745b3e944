# SPDX-License-Identifier: BSD-3-Clause
"""Scales of scales by plain loops over one block of ggml's layout."""

import pytest
import torch

from blockscale.core.parse import parse
from blockscale.core.reference import QParams, dequantize
from blockscale.export.checkpoints.gguf.k_types import K_TYPES


def numbers(name: str) -> tuple[list[int], torch.Tensor]:
    """One block's bytes, and our values of it."""
    of = K_TYPES[name]
    block = torch.randint(0, 256, (1, of.size), dtype=torch.uint8,
                          generator=torch.Generator().manual_seed(9))  # fmt: skip
    place = {"Q3_K": 108, "Q6_K": 208}[name]
    block[0, place : place + 2] = torch.tensor([0.5], dtype=torch.float16).view(torch.uint8)
    parts = of.apart(block)
    values = dequantize(parts.pop("codes"), QParams(**parts), parse(of.format), torch.float32)
    return block[0].tolist(), values[0]


def test_q3_k() -> None:
    """ggml's dequantize_row_q3_K."""
    q, values = numbers("Q3_K")
    for i in range(256):
        half, j, byte = i // 128, i % 128 // 32, i % 32
        low = q[32 + 32 * half + byte] >> 2 * j & 3
        high = q[byte] >> 4 * half + j & 1
        s = i // 16
        scale = (q[96 + s % 8] >> 4 * (s // 8) & 15) | (q[104 + s % 4] >> 2 * (s // 4) & 3) << 4
        assert values[i] == 0.5 * (scale - 32) * (low + 4 * high - 4)


def test_q6_k() -> None:
    """ggml's dequantize_row_q6_K."""
    q, values = numbers("Q6_K")
    for i in range(256):
        half, quarter, byte = i // 128, i % 128 // 32, i % 32
        low = q[64 * half + 32 * (quarter % 2) + byte] >> 4 * (quarter // 2) & 15
        high = q[128 + 32 * half + byte] >> 2 * quarter & 3
        scale = q[192 + i // 16]
        scale -= 256 * (scale > 127)
        assert values[i] == 0.5 * scale * (low + 16 * high - 32)


@pytest.mark.parametrize(
    ("name", "outer", "first", "byte", "group"),
    [("Q4_K", 2, 8, 3, 32), ("Q2_K", 82, 0, 3 << 4, 16)],
)
def test_minimums_are_subtracted(name: str, outer: int, first: int, byte: int, group: int) -> None:
    of = K_TYPES[name]
    block = torch.zeros(1, of.size, dtype=torch.uint8)
    block[0, outer : outer + 2] = torch.tensor([2.0], dtype=torch.float16).view(torch.uint8)
    block[0, first] = byte
    parts = of.apart(block)
    values = dequantize(parts.pop("codes"), QParams(**parts), parse(of.format), torch.float32)
    assert values[0, :group].tolist() == [-6.0] * group and not values[0, group:].any()
