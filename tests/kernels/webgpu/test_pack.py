# SPDX-License-Identifier: BSD-3-Clause
"""Codes of every width in rows that end anywhere."""

import pytest
import torch

import blockscale as bs
from blockscale.core.parse import parse
from blockscale.ops import primitives as P
from tests.support.same import same

ELEMENTS = (
    "binary", "ternary", "int2", "uint1", "uint3", "e2m1", "int5", "int6", "e3m2", "int7", "int8",
    "uint8", "int9", "int12", "uint13", "int16", "uint16", "nf4",
)  # fmt: skip


@pytest.mark.parametrize("name", ELEMENTS)
def test_codes_are_packed_and_unpacked_as_by_the_reference(name: str) -> None:
    fmt = f"{name}:tensor:fp32"
    element = parse(fmt).element
    generator = torch.Generator().manual_seed(element.bits)
    for shape in ((), (1,), (7,), (2, 3, 37), (64, 64), (5, 0), (0, 4)):
        patterns = torch.randint(0, 2**element.bits, shape, generator=generator)
        if name == "ternary":
            patterns[patterns == 2] = 0
        codes = element.from_bits(patterns.to(torch.uint8 if element.bits <= 8 else torch.int32))
        with bs.use("reference"):
            packed = P.pack(codes, fmt)
        with bs.use("webgpu"):
            assert same(P.pack(codes, fmt), packed), shape
            if shape:
                assert same(P.unpack(packed, fmt, shape[-1]), codes), shape


def test_other_dtypes_are_told() -> None:
    with bs.use("webgpu"):
        with pytest.raises(TypeError, match="int8"):
            P.pack(torch.zeros(4, dtype=torch.int64), "int8")
        with pytest.raises(ValueError, match="packed"):
            P.unpack(torch.zeros(4, dtype=torch.uint8), "int4", 64)
