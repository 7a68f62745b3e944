"""Every element of a tensor lies in one tile, with the scale of its block."""

from typing import Any

import pytest
import torch
import triton
import triton.language as tl

from blockscale.core.parse import parse
from blockscale.kernels.cuda.device.tile import locate, spread
from blockscale.kernels.cuda.primitives.tiling import Blocks, blocks_of, tiling
from tests.kernels.cuda.equal import DEVICE

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


@triton.jit
def _indices(out, seen, extents, tile: tl.constexpr):
    place = locate(tile, extents, 1)
    at = place.start[:, None] + place.j[None, :]
    index = tl.broadcast_to(spread(place.index, tile), at.shape)
    tl.store(out + at, index.to(tl.int32), mask=place.mask)
    tl.atomic_add(seen + at, 1, mask=place.mask)


CASES = [
    ("tensor", (3, 50)), ("token", (5, 40)), ("group16", (3, 64)), ("group7", (4, 30)),
    ("channel0", (6, 5, 4)), ("channel1", (6, 5, 4)), ("channel-1", (3, 7, 10)),
    ("group4@0", (11, 6)), ("tile4x16", (10, 40)), ("tile2x3", (2, 5, 8)), ("group8", (9,)),
]  # fmt: skip


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize(("block", "shape"), CASES)
def test_each_element_has_its_blocks_scale(block: str, shape: tuple[int, ...], whole: bool) -> None:
    blocks = parse(f"int8:{block}:fp32").block
    laid = tiling(blocks_of(shape, blocks), 64, whole=whole, unit=32)
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


def test_blocks_too_large_for_a_program() -> None:
    assert tiling(Blocks(1, 1, 2**15, 1, 2**15), 64, whole=True) is not None
    assert tiling(Blocks(1, 1, 2**15 + 1, 1, 2**15 + 1), 64, whole=True) is None


def test_a_tile_in_pairs_has_half_the_columns() -> None:
    laid = tiling(Blocks(1, 4, 64, 1, 32), 64, whole=True)
    assert laid is not None
    half: Any = laid.tile.in_pairs
    assert (half.rows, half.columns, half.part) == (laid.tile.rows, 16, 16)
    assert hash(half) != hash(laid.tile)
