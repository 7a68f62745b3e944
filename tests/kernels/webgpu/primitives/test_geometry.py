# SPDX-License-Identifier: BSD-3-Clause
"""Where blocks lie: after one another wherever the dimensions allow it, else as boxes."""

import pytest

from blockscale.core.block import read_block
from blockscale.kernels.webgpu.primitives.geometry import geometry


@pytest.mark.parametrize(
    ("shape", "block", "kind", "blocks", "size"),
    [
        ((4, 64), "group32", "line", 8, 32),
        ((4, 37), "group32", "box", 8, 32),
        ((37,), "group32", "line", 2, 32),
        ((4, 6, 8), "tensor", "line", 1, 192),
        ((4, 6, 8), "channel0", "line", 4, 48),
        ((4, 6, 8), "channel1", "box", 6, 32),
        ((4, 6, 8), "token", "line", 24, 8),
        ((3, 5), "flat4", "line", 4, 4),
        ((4, 6), "flat4@0", "box", 6, 4),
        ((4, 6, 8), "block2x*x8", "line", 2, 96),
        ((4, 6, 8), "block2x3x4", "box", 8, 24),
        ((), "tensor", "line", 1, 1),
    ],
)
def test_blocks_lie_in_a_line_or_in_boxes(
    shape: tuple[int, ...], block: str, kind: str, blocks: int, size: int
) -> None:
    at = geometry(shape, read_block(block))
    assert (at.kind, at.blocks, at.block) == (kind, blocks, size)
    assert len(at.named) == (1 if kind == "line" else 16)


def test_neighbours_share_a_scale_where_blocks_divide_into_them() -> None:
    assert geometry((4, 64), read_block("group32")).shares(8)
    assert not geometry((4, 64), read_block("group4")).shares(8)
    assert geometry((7,), read_block("tensor")).shares(8)
    assert geometry((4, 48), read_block("tile2x16")).shares(16)
    assert not geometry((4, 36), read_block("tile2x16")).shares(8)  # rows end within eights


def test_too_many_elements_or_dimensions_are_told() -> None:
    with pytest.raises(ValueError, match="too large"):
        geometry((1 << 16, 1 << 16), read_block("tensor"))
    with pytest.raises(ValueError, match="up to 8"):
        geometry((4,) * 10, read_block("block" + "x".join("2" * 10)))
