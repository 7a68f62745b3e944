"""The means of blocks that span slabs are those of the whole, whatever the slabs."""

import pytest
import torch

from blockscale.core.block import WHOLE, read_block
from blockscale.core.blocks import Blocks
from blockscale.files.slabs.streamed_blocks import StreamedBlocks


def streamed(x: torch.Tensor, block: str, rows: int) -> StreamedBlocks:
    """The blocks of x [n, k] in slabs of `rows`."""
    sizes = read_block(block).sizes_for(2)

    def each(work):
        for start in range(0, len(x), rows):
            own = slice(0, 1) if sizes[0] == WHOLE else slice(start, start + rows)
            yield (own,), work(x[start : start + rows], (own,))

    low, high = Blocks(x, read_block(block)).range()
    return StreamedBlocks(torch.maximum(-low, high), read_block(block), each)


@pytest.mark.parametrize("rows", [1, 3, 64])
@pytest.mark.parametrize("block", ["tensor", "channel1"])
@pytest.mark.parametrize("scale", [1.0, 1e-42, 1e38])
def test_the_means_are_those_of_the_whole(block: str, rows: int, scale: float) -> None:
    x = torch.randn(10, 6) * scale
    x[2, 1], x[7, 3], x[9] = torch.nan, torch.inf, 0.0
    whole, pieces = Blocks(x, read_block(block)), streamed(x, block, rows)
    mean = whole.mean_magnitude()
    assert torch.equal(pieces.mean_magnitude(), mean)
    assert bool((mean > 0).all())
    above = mean * 0.7
    assert torch.equal(pieces.mean_magnitude(above), whole.mean_magnitude(above))
    assert not torch.equal(pieces.mean_magnitude(above), mean)


def test_nothing_finite_has_the_mean_zero() -> None:
    x = torch.full((4, 3), torch.nan)
    assert streamed(x, "channel1", 2).mean_magnitude().tolist() == [[0.0, 0.0, 0.0]]
