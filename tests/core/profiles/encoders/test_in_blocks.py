# SPDX-License-Identifier: BSD-3-Clause
"""Rows of blocks as numbers lie in memory, and back."""

import pytest
import torch

import blockscale as bs
from blockscale.core.parse import parse
from blockscale.core.profiles.encoders.in_blocks import Padded, in_blocks, put_back, whole
from blockscale.core.reference import QParams


@pytest.mark.parametrize(
    ("block", "shape"),
    [
        ("group8", (12, 8)),
        ("flat16", (6, 16)),
        ("channel0", (2, 48)),
        ("tensor", (1, 96)),
    ],
)
def test_rows_are_blocks(block: str, shape: tuple[int, int]) -> None:
    fmt = parse(f"int8:{block}:fp32:full")
    x = torch.randn(2, 3, 16).bfloat16()
    blocks = in_blocks(x, fmt)
    assert tuple(blocks.shape) == shape and blocks.dtype == torch.bfloat16
    assert torch.equal(blocks.reshape(x.shape), x)
    scale = torch.arange(shape[0]) + 1.0
    codes, qparams = put_back(x, fmt, torch.ones(shape), scale=scale)
    assert codes.dtype == torch.int8 and codes.shape == x.shape
    assert qparams.scale.flatten().tolist() == scale.tolist()
    expanded = fmt.block.expand(qparams.scale, x.shape).expand(x.shape).reshape(shape)
    assert torch.equal(expanded, scale[:, None].expand(shape))


@pytest.mark.parametrize("block", ["group8@0", "tile4x4", "channel1", "flat8@0"])
def test_other_blocks_are_refused(block: str) -> None:
    with pytest.raises(ValueError, match="are no rows of the numbers as they lie"):
        in_blocks(torch.zeros(8, 8), parse(f"int8:{block}:fp32"))


def test_blocks_that_do_not_divide_are_refused() -> None:
    with pytest.raises(ValueError, match=r"blocks of 64 do not divide a tensor of \(3, 50\)"):
        in_blocks(torch.zeros(3, 50), parse("int8:flat64:fp32"))


def test_a_number_for_every_block() -> None:
    assert whole(torch.zeros(2, 1), 7.0).tolist() == [[7.0], [7.0]]


def test_rows_are_padded_with_zeros_to_whole_groups() -> None:
    seen = []

    def encoder(x: torch.Tensor, fmt: bs.Format) -> tuple[torch.Tensor, QParams]:
        seen.append(x)
        return put_back(x, fmt, x, scale=in_blocks(x, fmt)[:, 0])

    fmt = parse("int8:group8:fp32")
    for columns, whole_columns in ((16, 16), (13, 16), (3, 8)):
        x = torch.arange(2 * columns).reshape(2, columns).float()
        codes, qparams = Padded(encoder)(x, fmt)
        assert seen[-1].shape == (2, whole_columns) and not seen[-1][:, columns:].any()
        assert torch.equal(codes, x.to(torch.int8)) and codes.is_contiguous()
        assert qparams.scale.shape == (2, whole_columns // 8)
