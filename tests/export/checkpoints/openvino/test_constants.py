# SPDX-License-Identifier: BSD-3-Clause
"""How codes lie in a .bin, against sums done here."""

import pytest
import torch

from blockscale.core.pack import unpack
from blockscale.core.parse import parse
from blockscale.export.checkpoints.openvino.constants import packed_codes, stored_bytes


@pytest.mark.parametrize(
    ("kind", "count", "size"),
    [("u1", 9, 2), ("u3", 8, 3), ("u3", 9, 6), ("u6", 4, 3), ("u6", 5, 6), ("u4", 3, 2),
     ("i8", 3, 3), ("f16", 3, 6), ("string", 3, None)],
)  # fmt: skip
def test_bytes(kind, count, size):
    assert stored_bytes(kind, count) == size


def test_split_bits():
    """u3: two low bits of eight elements, then their high bits, the first in the highest place."""
    codes = [0b101, 0b010, 0b111, 0b000, 0b011, 0b100, 0b110, 0b001]
    low = [sum((c & 3) << 6 - 2 * i for i, c in enumerate(codes[k : k + 4])) for k in (0, 4)]
    high = sum((c >> 2) << 7 - i for i, c in enumerate(codes))
    element = parse("uint3:tensor:fp32").element
    data = torch.tensor([*low, high], dtype=torch.uint8)
    packed = packed_codes(data, "u3", element, (1, 8))
    assert unpack(packed, element, (8,)).tolist() == codes


def test_one_bit():
    element = parse("uint1:tensor:fp32").element
    packed = packed_codes(torch.tensor([0b10110000], dtype=torch.uint8), "u1", element, (5,))
    assert unpack(packed, element, (5,)).tolist() == [1, 0, 1, 1, 0]
