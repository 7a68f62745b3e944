# SPDX-License-Identifier: BSD-3-Clause
"""Every element of a tensor lies in one tile, with the scale of its block."""

from typing import Any

import pytest
import torch
import triton
import triton.language as tl

from blockscale.core.parse import parse
from blockscale.kernels.cuda.device.tile import expand, locate
from blockscale.kernels.cuda.primitives.tiling import BlockedMatrix, blocks_of, groups, tiling
from tests.support.cuda_equal import DEVICE
from tests.support.some import crossed

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


@triton.jit
def _indices(out, seen, extents, tile: tl.constexpr):
    place = locate(tile, extents, 1)
    at = place.start[:, None] + place.j[None, :]
    index = tl.broadcast_to(expand(place.index, tile), at.shape)
    tl.store(out + at, index.to(tl.int32), mask=place.mask)
    tl.atomic_add(seen + at, 1, mask=place.mask)


CASES = [
    ("tensor", (3, 50)), ("token", (5, 40)), ("group16", (3, 64)), ("group7", (4, 30)),
    ("channel0", (6, 5, 4)), ("channel1", (6, 5, 4)), ("channel-1", (3, 7, 10)),
    ("group4@0", (11, 6)), ("tile4x16", (10, 40)), ("tile2x3", (2, 5, 8)), ("group8", (9,)),
    ("block2x*", (5, 7)), ("block*x3", (4, 8)), ("block1x2x3x3", (3, 4, 3, 3)),  # merge to fewer
    ("block2x1x3", (5, 2, 4)), ("block*x*x*", (2, 3, 5)), ("block9x9x9", (1, 1, 1)),
    ("block3x3x2x1", (7, 6, 5, 4)), ("block3x3x2x1", (4, 3, 2, 3)), ("block2x4x8", (6, 8, 32)),
    ("block2x3x7", (5, 7, 20)), ("block*x1x*", (3, 4, 6)), ("block2x*x4", (3, 5, 8)),
    ("block2x5x4x3", (2, 3, 7, 5, 6)), ("block2x2x2x2x2", (3, 3, 3, 3, 3)),
    ("block4x4x40", (9, 4, 90)), ("block2x2x1", (4, 6, 33)), ("block3x2x16", (3, 4, 64)),
    ("block2x2x2x2x2x2x2", (2, 3, 2, 3, 2, 3, 3)), ("block2x*x*", (5, 3, 5)),
    ("block1x3x3x3", (4, 5, 3, 3)),
]  # fmt: skip


@pytest.mark.some(8)
@pytest.mark.parametrize(
    ("case", "cut"),
    crossed(3, CASES, [(False, 64, 32), (False, 64, 256), (True, 64, 32), (True, 512, 32)]),
    ids=str,
)
def test_each_element_has_its_blocks_scale(
    case: tuple[str, tuple[int, ...]], cut: tuple[bool, int, int]
) -> None:
    (block, shape), (whole, elements, unit) = case, cut
    blocks = parse(f"int8:{block}:fp32").block
    laid = tiling(blocks_of(shape, blocks), elements, whole=whole, unit=unit)
    if laid is None:
        assert whole
        assert block == "channel1"  # whose blocks lie apart
        return
    index = torch.full(shape, -1, dtype=torch.int32, device=DEVICE)
    seen = torch.zeros(shape, dtype=torch.int32, device=DEVICE)
    _indices[(laid.programs,)](index, seen, laid.extents, tile=laid.tile)
    scales = blocks.scale_shape(torch.Size(shape))
    numbered = torch.arange(torch.Size(scales).numel(), dtype=torch.int32).reshape(scales)
    assert bool((seen == 1).all())
    assert torch.equal(index.cpu(), blocks.expand(numbered, torch.Size(shape)).expand(shape))


@triton.jit
def _groups(starts, js, masks, extents, tile: tl.constexpr, width: tl.constexpr):
    place = locate(tile, extents, width)
    columns: tl.constexpr = tile.columns // width
    program = tl.program_id(0)
    rows = program * tile.rows + tl.arange(0, tile.rows)
    tl.store(starts + rows, place.start)
    each = tl.arange(0, columns)
    tl.store(js + program * columns + each, place.j.to(tl.int64))
    tl.store(masks + rows[:, None] * columns + each[None, :], place.mask.to(tl.int8))


@pytest.mark.some(8)
@pytest.mark.parametrize("width", [1, 2, 4])
@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize(
    ("block", "shape"),
    [
        ("block2x4x8", (6, 8, 32)), ("block2x2x8", (3, 5, 72)), ("block2x3x16", (5, 7, 48)),
        ("block3x3x2x1", (4, 5, 3, 8)), ("block2x2x12", (4, 3, 36)), ("block3x2x40", (6, 4, 120)),
        ("block2x2x1", (3, 4, 20)), ("block1x2x3x4", (3, 4, 3, 4)),
    ],
)  # fmt: skip
def test_neighbours_lie_as_kernels_are_told(
    block: str, shape: tuple[int, ...], whole: bool, width: int
) -> None:
    """What the compiler takes for granted of boxes: `vector` numbers exist together, side by side
    from a multiple of `vector` on; and groups of `width` cover each element once."""
    at = blocks_of(shape, parse(f"int8:{block}:fp32").block)
    laid = tiling(at, 256, whole=whole, unit=256)
    assert laid is not None
    tile: Any = laid.tile
    assert tile.box is not None
    assert groups(at, tile, laid.extents.uk, width)
    columns, vector = tile.columns // width, max(tile.vector // width, 1)
    starts = torch.zeros(laid.programs, tile.rows, dtype=torch.int64, device=DEVICE)
    js = torch.zeros(laid.programs, columns, dtype=torch.int64, device=DEVICE)
    masks = torch.zeros(laid.programs, tile.rows, columns, dtype=torch.int8, device=DEVICE)
    _groups[(laid.programs,)](starts, js, masks, laid.extents, tile=tile, width=width)
    assert not (starts % tile.vector).any()
    together = js.reshape(laid.programs, -1, vector)
    assert not (together[..., 0] % vector).any()
    assert torch.equal(together, together[..., :1] + torch.arange(vector, device=DEVICE))
    masked = masks.reshape(laid.programs, tile.rows, -1, vector)
    assert torch.equal(masked, masked[..., :1].expand_as(masked))
    first = (starts[:, :, None] // width + js[:, None, :])[masks.bool()] * width
    every = (first[:, None] + torch.arange(width, device=DEVICE)).flatten()
    assert torch.equal(every.sort().values.cpu(), torch.arange(torch.Size(shape).numel()))


def test_boxes_where_dimensions_merge() -> None:
    """Blocks that lie along two dimensions once others merge are what they always were."""
    for block, shape, expected in [
        ("block1x2x3x3", (8, 6, 3, 3), BlockedMatrix(1, 1, 432, 1, 18, before=())),
        ("block1x2x4x4", (8, 6, 4, 4), BlockedMatrix(1, 1, 768, 1, 32)),
        ("block1x2x3x3", (8, 5, 3, 3), BlockedMatrix(1, 8, 45, 1, 18, before=((8, 1),))),
        ("block4x8x*", (2, 6, 16, 9), BlockedMatrix(2, 6, 144, 4, 72)),
        ("block2x*x*", (4, 3, 5), BlockedMatrix(1, 1, 60, 1, 30, before=())),
        ("block4x1x8", (2, 12, 1, 32), BlockedMatrix(1, 24, 32, 4, 8)),
        ("block2x2x2", (1, 1, 1), BlockedMatrix(1, 1, 1, 1, 1)),
        (
            "block4x8x16",
            (64, 64, 64),
            BlockedMatrix(1, 4096, 64, 32, 16, before=((64, 8), (64, 4))),
        ),
    ]:
        assert blocks_of(shape, parse(f"int8:{block}:fp32").block) == expected, block


def test_blocks_too_large_for_a_program() -> None:
    assert tiling(BlockedMatrix(1, 1, 2**15, 1, 2**15), 64, whole=True) is not None
    assert tiling(BlockedMatrix(1, 1, 2**15 + 1, 1, 2**15 + 1), 64, whole=True) is None


def test_a_tile_in_pairs_has_half_the_columns() -> None:
    laid = tiling(BlockedMatrix(1, 4, 64, 1, 32), 64, whole=True)
    assert laid is not None
    half: Any = laid.tile.in_pairs
    assert (half.rows, half.columns, half.part) == (laid.tile.rows, 16, 16)
    assert hash(half) != hash(laid.tile)
