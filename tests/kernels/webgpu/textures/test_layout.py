# SPDX-License-Identifier: BSD-3-Clause
"""Where elements lie, against coordinates counted one by one."""

import itertools

import pytest
import torch

from blockscale.core.parse import parse
from blockscale.kernels.webgpu.textures.layout import block_grid, layout

CASES = [
    ((7,), "group3"),
    ((5, 6), "tile2x3"),
    ((5, 6), "channel0"),
    ((4, 6), "tensor"),
    ((6, 4, 6), "block3x2x2"),
    ((8, 6, 6, 6), "block2x3x2x3"),
    ((3, 5, 2, 7), "block2x2x2x2"),
    ((2, 3, 4, 5, 6), "group4"),
    ((2, 3, 4, 5, 6), "tensor"),
    ((4, 3, 2, 5, 6), "channel0"),
    ((4, 3, 2, 5, 6), "block2x*x*x2x3"),
]


def by_counting(shape: tuple[int, ...], fmt: str) -> dict[tuple[int, int, int, int], int]:
    """(width, height, z) of each element -> its block in the order of scales."""
    block = parse(f"int8:{fmt}:fp32").block
    count = block.scale_shape(shape)
    numbered = torch.arange(torch.Size(count).numel()).reshape(count)
    blocks = block.expand(numbered, shape).expand(shape)
    found = {}
    for at in itertools.product(*map(range, shape)):
        *outer, h, w = (0, 0, *at)[-max(len(at), 2) :]
        z = 0
        for i, n in zip(outer, shape[:-2], strict=True):
            z = z * n + i
        found[w, h, z] = int(blocks[at])
    return found


@pytest.mark.parametrize(("shape", "block"), CASES, ids=str)
def test_blocks_are_those_of_the_format(shape: tuple[int, ...], block: str) -> None:
    grid = block_grid(shape, parse(f"int8:{block}:fp32").block)
    assert grid is not None
    channels = grid.tensor[2]
    expected = by_counting(shape, block)
    assert len(expected) == torch.Size(shape).numel()
    for (w, h, z), number in expected.items():
        at = (w, h, z % channels, z // channels)
        blocks = [c // b for c, b in zip(at, grid.sizes, strict=True)]
        assert sum(b * s for b, s in zip(blocks, grid.strides, strict=True)) == number


@pytest.mark.parametrize(("shape", "block"), CASES, ids=str)
def test_a_block_reaches_into_so_many_texels_at_most(shape: tuple[int, ...], block: str) -> None:
    grid = block_grid(shape, parse(f"int8:{block}:fp32").block)
    assert grid is not None
    reached: dict[int, set[tuple[int, int, int]]] = {}
    for (w, h, z), number in by_counting(shape, block).items():
        reached.setdefault(number, set()).add((w // 4, h, z))
    for texels in reached.values():
        x, y, z = (len({t[axis] for t in texels}) for axis in range(3))
        assert (x, y) <= grid.texels[:2]
        assert z <= grid.texels[2]


@pytest.mark.parametrize(
    ("shape", "texels"),
    [
        ((), (1, 1, 1)),
        ((5,), (2, 1, 1)),
        ((3, 8), (2, 3, 1)),
        ((2, 3, 9), (3, 3, 2)),
        ((4, 2, 3, 9), (3, 3, 8)),
        ((5, 4, 2, 3, 1), (1, 3, 40)),
        ((0, 4), (1, 0, 1)),
    ],
    ids=str,
)
def test_texels(shape: tuple[int, ...], texels: tuple[int, int, int]) -> None:
    assert layout(shape).texels == texels


@pytest.mark.parametrize(
    ("shape", "block"),
    [((4, 16), "flat8"), ((4, 16), "flat8@0"), ((4, 4, 4, 4, 4, 4), "block2x2x2x2x2x2")],
)
def test_what_is_no_box(shape: tuple[int, ...], block: str) -> None:
    assert block_grid(shape, parse(f"int8:{block}:fp32").block) is None
