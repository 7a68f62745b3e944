# SPDX-License-Identifier: BSD-3-Clause
"""Packing against a bit stream written bit by bit (docs/numerics.md, section 6)."""

import math

import pytest
import torch
from torch import Tensor

from blockscale.core.elements import read_element
from blockscale.core.pack import pack, packed_dtype, packed_size, unpack
from tests.support.core_pack import NAMES, SHAPES, random_codes
from tests.support.exact import pack_row

NAMES += ["binary", "ternary", "e4m3", "e5m2", "e3m2", "e2m3", "e2m1", "e3m0", "e3m3"]
NAMES += [f"log{b}" for b in range(2, 9)]
NATIVE = {"int8": torch.int8, "uint8": torch.uint8, "int16": torch.int16, "uint16": torch.uint16}


def rows(codes: Tensor) -> list[list[int]]:
    """Rank 0 is one row of one code."""
    codes = codes.reshape(1) if codes.ndim == 0 else codes
    return codes.reshape(math.prod(codes.shape[:-1]), codes.shape[-1]).tolist()


@pytest.mark.some(4)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_the_bit_stream(name: str, shape: tuple[int, ...]) -> None:
    element, codes = read_element(name), random_codes(name, shape)
    packed = pack(codes, element)
    last = shape[-1] if shape else 1
    assert packed.dtype == packed_dtype(element) == NATIVE.get(name, torch.uint8)
    assert packed.shape == (*shape[:-1], packed_size(element, last))
    if name in NATIVE:
        assert rows(packed) == rows(codes)
    else:
        bit = (lambda c: c > 0) if name == "binary" else (lambda c: c)
        expected = [pack_row([bit(c) for c in row], element.bits) for row in rows(codes)]
        assert rows(packed) == expected
    back = unpack(packed, element, shape)
    assert back.dtype == codes.dtype
    assert back.shape == codes.shape
    assert torch.equal(back, codes)


@pytest.mark.parametrize(
    ("name", "codes", "expected"),
    [
        ("uint4", [1, 2, 3], [0x21, 0x03]),  # the even index in the low nibble
        ("int4", [-1, 1, -8, 7], [0x1F, 0x78]),
        ("e3m2", [1, 2, 3, 4], [0x81, 0x30, 0x10]),  # four codes in three bytes
        ("int2", [1, -1, 0, -2, 1], [0x8D, 0x01]),
        ("ternary", [1, 0, -1, 1], [0x71]),
        ("binary", [1, -1, -1, 1, 1, -1, 1, 1, 1], [0xD9, 0x01]),
        ("int12", [-1, 0x123], [0xFF, 0x3F, 0x12]),
        ("e4m3", [0x80, 0x7F], [0x80, 0x7F]),
        ("int8", [-128, 127], [-128, 127]),
        ("uint16", [65535, 0], [65535, 0]),
    ],
)
def test_by_hand(name: str, codes: list[int], expected: list[int]) -> None:
    element = read_element(name)
    assert pack(torch.tensor(codes).to(element.code_dtype), element).tolist() == expected


@pytest.mark.parametrize("name", ["int4", "e3m2", "uint16", "int8"])
def test_strided_codes(name: str) -> None:
    element, codes = read_element(name), random_codes(name, (5, 6))
    transposed = codes.t()
    assert torch.equal(pack(transposed, element), pack(transposed.contiguous(), element))
    assert torch.equal(unpack(pack(transposed, element), element, (6, 5)), transposed)


@pytest.mark.parametrize("bits", range(1, 17))
def test_sizes(bits: int) -> None:
    element = read_element(f"uint{bits}")
    for count in range(20):
        expected = count if bits in (8, 16) else math.ceil(count * bits / 8)
        assert packed_size(element, count) == expected
