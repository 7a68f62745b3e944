# SPDX-License-Identifier: BSD-3-Clause
"""Blocks from shapes, codes as two's complement, and parts put together."""

import pytest
import torch

from blockscale.core.pack import pack, unpack
from blockscale.core.parse import parse
from blockscale.export.checkpoints.assembling import (
    assembled,
    block_of,
    columns,
    flipped,
    kept,
    little_endian,
)


@pytest.mark.parametrize(
    ("shape", "scale", "group", "block"),
    [
        ((6, 64), (6, 4), 0, "group16"), ((6, 60), (6, 4), 16, "group16"),
        ((6, 60), (6, 4), 0, "group15"), ((6, 61), (6, 4), 0, None), ((6, 64), (6,), 0, "channel0"),
        ((6, 64), (6, 1), 0, "channel0"), ((6, 64), (1,), 0, "tensor"), ((6, 64), (), 0, "tensor"),
        ((200, 300), (2, 3), 0, "tile128x128"), ((8, 64), (2, 2), 0, "tile4x32"),
        ((3, 6, 64), (3, 6, 4), 0, "group16"), ((3, 6, 64), (2, 6, 4), 0, None),
        ((6, 64), (7, 9), 0, None), ((6, 64), (6, 0), 0, None), ((64,), (4,), 0, None),
        ((3, 6, 64), (3, 1, 1), 0, "tile6x64"),
    ],
)  # fmt: skip
def test_block_of(shape, scale, group, block):
    assert block_of(shape, scale, group) == block
    if block is not None:
        stored = parse(f"int8:{block}:fp32:full").stored(shape)["scale"][1]
        assert torch.Size(stored).numel() == torch.Size(scale).numel()


@pytest.mark.parametrize("bits", range(2, 9))
@pytest.mark.parametrize("size", [8, 13])
def test_flipped(bits, size):
    unsigned, signed = (parse(f"{n}{bits}:tensor:fp32").element for n in ("uint", "int"))
    codes = torch.randint(0, 2**bits, (3, size), dtype=torch.uint8)
    rows = torch.cat([pack(codes, unsigned), torch.full((3, 5), 255, dtype=torch.uint8)], -1)
    rows[:, -6] |= 255 << 8 - (-size * bits % 8) & 255 if size * bits % 8 else 0  # bits behind
    found = flipped(rows, signed, size)
    expected = pack(codes.to(torch.int16).sub(2 ** (bits - 1)).to(torch.int8), signed)
    assert torch.equal(found.view(torch.uint8), expected.view(torch.uint8))
    assert torch.equal(kept(rows, unsigned, size), pack(codes, unsigned))


def test_columns_in_another_order():
    fmt = parse("int4:group4:fp32:full")
    codes, order = torch.randint(-8, 8, (3, 9), dtype=torch.int8), torch.randperm(9)
    found = columns(pack(codes, fmt.element), fmt, 9, order)
    assert torch.equal(unpack(found, fmt.element, (3, 9)), codes[:, order])


def test_little_endian():
    words = torch.tensor([[1, -2]], dtype=torch.int32)
    assert little_endian(words).tolist() == [[1, 0, 0, 0, 254, 255, 255, 255]]
    turned = torch.tensor([[1, 2]], dtype=torch.int32).mT  # strides that are no row's
    assert little_endian(turned).tolist() == [[1, 0, 0, 0], [2, 0, 0, 0]]


def test_assembled():
    codes = torch.randint(-128, 128, (2, 4), dtype=torch.int8)
    parts = {"codes": codes, "scale": torch.rand(2), "zero_point": torch.ones(2, 1).char()}
    q = assembled("int8:channel0:fp32:asym", (2, 4), parts)
    assert torch.equal(q.dequantize(), (codes - 1.0) * parts["scale"][:, None])
    with pytest.raises(ValueError, match=r"its zero_point has shape .3., expected .2, 1."):
        assembled("int8:channel0:fp32:asym", (2, 4), parts | {"zero_point": torch.ones(3)})
