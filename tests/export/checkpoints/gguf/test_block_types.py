# SPDX-License-Identifier: BSD-3-Clause
"""Fields of bytes: against plain loops, and there and back."""

import pytest
import torch

from blockscale.core.parse import parse
from blockscale.core.reference import QParams, dequantize
from blockscale.export.checkpoints.gguf import block_types
from blockscale.export.checkpoints.gguf.block_types import K_TYPES
from blockscale.export.checkpoints.gguf.block_types import SIMPLE_TYPES as TYPES

DATA = torch.randint(0, 256, (5, 64), dtype=torch.uint8, generator=torch.Generator().manual_seed(3))


@pytest.mark.parametrize(("width", "run"), [(4, 0), (4, 32), (2, 32), (1, 0), (4, 8), (2, 64)])
def test_spread(width: int, run: int) -> None:
    found = block_types.split_runs(DATA, width, run)
    rows = []
    for data in DATA.tolist():
        size = run or len(data)
        row = []
        for start in range(0, len(data), size):
            for shift in range(0, 8, width):
                row += [byte >> shift & (1 << width) - 1 for byte in data[start : start + size]]
        rows.append(row)
    assert found.tolist() == rows
    assert torch.equal(block_types.join_runs(found, width, run * 8 // width // (8 // width)), DATA)


@pytest.mark.parametrize("width", [1, 2, 4])
def test_stream(width: int) -> None:
    found = block_types.stream(DATA, width)
    whole = int.from_bytes(bytes(DATA[2].tolist()), "little")
    count = 64 * 8 // width
    assert found[2].tolist() == [whole >> width * i & (1 << width) - 1 for i in range(count)]
    assert torch.equal(block_types.join_stream(found, width), DATA)


def test_six_bits() -> None:
    """The scales of Q4_K: as ggml's get_scale_min_k4 takes them."""
    data = DATA[:, :12]
    scales, minimums = block_types.six_bits(data)
    for q, s, m in zip(data.tolist(), scales.tolist(), minimums.tolist(), strict=True):
        for j in range(4):
            assert (s[j], m[j]) == (q[j] & 63, q[j + 4] & 63)
            assert s[j + 4] == (q[j + 8] & 15) | (q[j] >> 6 << 4)
            assert m[j + 4] == (q[j + 8] >> 4) | (q[j + 4] >> 6 << 4)
    assert torch.equal(block_types.from_six_bits(scales, minimums), data)


@pytest.mark.parametrize("count", [4, 5])
def test_digits(count: int) -> None:
    """Every byte; ggml's own bytes come back."""
    every = torch.arange(256, dtype=torch.uint8)[None]
    found = block_types.digits(every, count)
    assert found.reshape(count, 256)[:, 200].tolist() == [
        3 * (200 * 3**t % 256) // 256 for t in range(count)
    ]
    back = block_types.from_digits(found, count)
    assert torch.equal(block_types.digits(back, count), found)
    assert torch.equal(block_types.from_digits(block_types.digits(back, count), count), back)


def test_signed() -> None:
    codes = torch.arange(16, dtype=torch.uint8)
    assert block_types.signed(codes, 8).tolist() == list(range(-8, 8))
    assert torch.equal(block_types.unsigned(block_types.signed(codes, 8), 8), codes)


# Scales of scales by plain loops over one block of ggml's layout.


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


# Types that gguf-py has no decoder for, by their layout (checkpoints.md, section 3).


def test_codes_of_q1_0_and_q2_0() -> None:
    bits = torch.zeros(1, 18, dtype=torch.uint8)
    bits[0, :2] = torch.tensor([2.0], dtype=torch.float16).view(torch.uint8)
    bits[0, 2], bits[0, 17] = 0b00000101, 0b10000000
    parts = TYPES["Q1_0"].apart(bits)
    signs = torch.full((128,), -1)
    signs[[0, 2, 127]] = 1
    assert parts["codes"][0].tolist() == signs.tolist() and parts["scale"].item() == 2
    bits[0, 2:] = 0b11100100
    parts = TYPES["Q2_0"].apart(bits)
    values = dequantize(
        parts.pop("codes"), QParams(**parts), parse(TYPES["Q2_0"].format), torch.float32
    )
    assert values[0, :8].tolist() == [-2.0, 0.0, 2.0, 4.0] * 2
