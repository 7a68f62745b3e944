# SPDX-License-Identifier: BSD-3-Clause
"""Fields of bytes: against plain loops, and there and back."""

import pytest
import torch

from blockscale.export.checkpoints.gguf import fields

DATA = torch.randint(0, 256, (5, 64), dtype=torch.uint8, generator=torch.Generator().manual_seed(3))


@pytest.mark.parametrize(("width", "run"), [(4, 0), (4, 32), (2, 32), (1, 0), (4, 8), (2, 64)])
def test_spread(width: int, run: int) -> None:
    found = fields.spread(DATA, width, run)
    rows = []
    for data in DATA.tolist():
        size = run or len(data)
        row = []
        for start in range(0, len(data), size):
            for shift in range(0, 8, width):
                row += [byte >> shift & (1 << width) - 1 for byte in data[start : start + size]]
        rows.append(row)
    assert found.tolist() == rows
    assert torch.equal(fields.gathered(found, width, run * 8 // width // (8 // width)), DATA)


@pytest.mark.parametrize("width", [1, 2, 4])
def test_stream(width: int) -> None:
    found = fields.stream(DATA, width)
    whole = int.from_bytes(bytes(DATA[2].tolist()), "little")
    count = 64 * 8 // width
    assert found[2].tolist() == [whole >> width * i & (1 << width) - 1 for i in range(count)]
    assert torch.equal(fields.streamed(found, width), DATA)


def test_six_bits() -> None:
    """The scales of Q4_K: as ggml's get_scale_min_k4 takes them."""
    data = DATA[:, :12]
    scales, minimums = fields.six_bits(data)
    for q, s, m in zip(data.tolist(), scales.tolist(), minimums.tolist(), strict=True):
        for j in range(4):
            assert (s[j], m[j]) == (q[j] & 63, q[j + 4] & 63)
            assert s[j + 4] == (q[j + 8] & 15) | (q[j] >> 6 << 4)
            assert m[j + 4] == (q[j + 8] >> 4) | (q[j + 4] >> 6 << 4)
    assert torch.equal(fields.from_six_bits(scales, minimums), data)


@pytest.mark.parametrize("count", [4, 5])
def test_digits(count: int) -> None:
    """Every byte; ggml's own bytes come back."""
    every = torch.arange(256, dtype=torch.uint8)[None]
    found = fields.digits(every, count)
    assert found.reshape(count, 256)[:, 200].tolist() == [
        3 * (200 * 3**t % 256) // 256 for t in range(count)
    ]
    back = fields.from_digits(found, count)
    assert torch.equal(fields.digits(back, count), found)
    assert torch.equal(fields.from_digits(fields.digits(back, count), count), back)


def test_signed() -> None:
    codes = torch.arange(16, dtype=torch.uint8)
    assert fields.signed(codes, 8).tolist() == list(range(-8, 8))
    assert torch.equal(fields.unsigned(fields.signed(codes, 8), 8), codes)
