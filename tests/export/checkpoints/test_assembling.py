# SPDX-License-Identifier: BSD-3-Clause
"""Blocks from shapes, codes as two's complement, and parts put together."""

import numpy as np
import pytest
import torch

from blockscale.core.pack import pack, unpack
from blockscale.core.parse import parse
from blockscale.export.checkpoints import assembling
from blockscale.export.checkpoints.assembling import (
    assemble,
    block_of,
    columns,
    flip,
    little_endian,
    trim,
)
from tests.export.checkpoints.packing import stream


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
    found = flip(rows, signed, size)
    expected = pack(codes.to(torch.int16).sub(2 ** (bits - 1)).to(torch.int8), signed)
    assert torch.equal(found.view(torch.uint8), expected.view(torch.uint8))
    assert torch.equal(trim(rows, unsigned, size), pack(codes, unsigned))


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
    q = assemble("int8:channel0:fp32:asym", (2, 4), parts)
    assert torch.equal(q.dequantize(), (codes - 1.0) * parts["scale"][:, None])
    with pytest.raises(ValueError, match=r"its zero_point has shape .3., expected .2, 1."):
        assemble("int8:channel0:fp32:asym", (2, 4), parts | {"zero_point": torch.ones(3)})


@pytest.mark.parametrize("bits", range(1, 9))
def test_streams(bits):
    codes = np.random.default_rng(bits).integers(0, 2**bits, (64, 5))
    rows = stream(codes, bits).T
    assert torch.equal(assembling.fields(rows, bits), torch.from_numpy(codes.T.astype(np.uint8)))
    assert assembling.fields(rows, bits, 7).tolist() == codes.T[:, :7].tolist()
    spelling = f"uint{bits}:tensor:fp32"
    stored = assembling.as_codes(rows, spelling)
    assert torch.equal(
        stored, assembling.packed(torch.from_numpy(codes.T.astype(np.uint8)), spelling)
    )


@pytest.mark.some(3)
@pytest.mark.parametrize("order", [(0, 2, 4, 6, 1, 3, 5, 7), tuple(range(8))])
@pytest.mark.parametrize("shape", [(1, 1), (7, 3), (8, 1), (24, 5), (130, 40), (4100, 80)])
def test_words_turned_are_codes_taken_apart_and_put_together(shape, order):
    """Against numpy, one code an element; 4100 rows are more than one slab."""
    drawn = np.random.default_rng(shape[0]).integers(-(2**31), 2**31, shape).astype(np.int32)
    nibbles = drawn.view(np.uint32)[:, :, None] >> np.arange(0, 32, 4, dtype=np.uint32) & 15
    codes = nibbles[:, :, np.argsort(order)].reshape(shape[0], -1).T.astype(np.uint8)
    codes = np.pad(codes, ((0, 0), (0, shape[0] % 2)))
    expected = torch.from_numpy(codes[:, ::2] | codes[:, 1::2] << 4)
    found = assembling.rows_of_words(torch.from_numpy(drawn), order)
    assert found.is_contiguous() and torch.equal(found, expected)
    assert torch.equal(assembling.turned_back(found, order, shape[0]), torch.from_numpy(drawn))


def test_quantized():
    parts = {"codes": torch.zeros(4, 8, dtype=torch.uint8), "scale": torch.ones(8)}
    q = assembling.quantized("uint4:group8:fp32", (4, 16), parts)
    assert q.scale.shape == (4, 2) and tuple(q.shape) == (4, 16)
    for part, told in (
        (
            {"scale": torch.ones(7)},
            r"7 numbers of float32, expected 8 of float32 \(uint4:group8:fp32 of shape",
        ),
        ({"scale": torch.ones(8).half()}, "its scale has 8 numbers of float16"),
        ({"codes": torch.zeros(4, 7, dtype=torch.uint8)}, "its codes take 28 bytes"),
    ):
        with pytest.raises(ValueError, match=told):
            assembling.quantized("uint4:group8:fp32", (4, 16), parts | part)


def test_scales_and_groups():
    assert assembling.scale_type(torch.bfloat16) == "bf16"
    with pytest.raises(ValueError, match=r"its scales are torch.float64, expected float32"):
        assembling.scale_type(torch.float64)
    assert (assembling.groups(32, 64), assembling.groups(64, 64)) == ("group32", "channel0")
