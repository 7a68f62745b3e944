# SPDX-License-Identifier: BSD-3-Clause
"""Blocks over the flattened tensor told as blocks within rows: the same elements in one order."""

import pytest
import torch

import blockscale as bs
from blockscale.core.parse import parse
from blockscale.ops.flat import blocks_of, in_blocks_of, within_rows


@pytest.mark.parametrize(
    ("fmt", "shape", "block"),
    [
        ("nf4:flat64:fp32", (3, 128), "group64"),
        ("nf4:flat64:fp32", (2, 3, 128), "group64"),
        ("nf4:flat64:fp32", (70,), "group64"),  # a vector is a row, its last block partial
        ("int4:flat64:fp16", (8, 16), "tile4x16"),
        ("int4:flat64:fp16", (7, 16), "tile4x16"),
        ("int4:flat64:(e4m3:tensor:fp32)", (3, 128), "group64"),
        ("int4:flat64:fp32", (2, 4, 16), "flat64"),  # rows of several matrices
        ("int4:flat64:fp32", (3, 96), "flat64"),
        ("int4:flat64:(int8:flat4:fp32)", (3, 128), "flat64"),  # scales are flat, too
        ("int4:flat64@0:fp32", (64, 128), "flat64@0"),
        ("int4:group64:fp32", (3, 128), "group64"),
        ("uint4:flat8:fp32:offset(flat8:fp16)", (3, 16), "flat8"),
        ("int4:flat64:fp32", (3, 0), "flat64"),
    ],
)
def test_which_blocks_are_the_same(fmt: str, shape: tuple[int, ...], block: str) -> None:
    assert str(within_rows(parse(fmt), shape).block) == block


@pytest.mark.filterwarnings("ignore:no cpu kernel runs:UserWarning")
@pytest.mark.parametrize("shape", [(3, 128), (2, 3, 64), (70,), (8, 16), (7, 16)])
@pytest.mark.parametrize("fmt", ["nf4:flat64:fp32", "uint4:flat64:fp16:asym"])
def test_the_parts_have_the_same_numbers(fmt: str, shape: tuple[int, ...]) -> None:
    x = torch.randn(shape)
    q, rows = bs.quantize(x, fmt), within_rows(parse(fmt), shape)
    other = bs.quantize(x, rows)
    assert rows.block.flat == 0 and torch.equal(q.packed, other.packed)
    back = in_blocks_of(other.qparams, parse(fmt), shape)
    for mine, theirs in zip(back, q.qparams, strict=True):
        assert mine is theirs is None or torch.equal(mine, theirs)
    there = in_blocks_of(q.qparams, rows, shape)
    assert there.scale.shape == other.qparams.scale.shape


def test_all_blocks_of_a_format() -> None:
    fmt = "uint4:group32:(uint6:group8:fp16:offset(tensor:fp16)):offset(token:fp16)"
    assert [str(block) for block in blocks_of(parse(fmt))] == [
        "group32",
        "group8",
        "tensor",
        "token",
    ]
    fmt = "uint4:group32:fp16:offset(uint6:group4:fp16)"
    assert [str(block) for block in blocks_of(parse(fmt))] == ["group32", "group4"]
