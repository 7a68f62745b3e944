# SPDX-License-Identifier: BSD-3-Clause
"""Views in which scales broadcast, against the block's own expansion."""

import pytest
import torch

from blockscale.calibration.algorithms.learned.cells import Cells
from blockscale.core.block import read_block

BLOCKS = [
    "tensor", "channel0", "channel1", "token", "group4", "group5", "group4@0", "tile2x6", "tile5x5",
    "flat8", "flat7", "flat4@0", "block*x4", "group1",
]  # fmt: skip


@pytest.mark.parametrize("name", BLOCKS)
def test_spread_and_sums_are_those_of_the_block(name: str) -> None:
    shape, block = (8, 12), read_block(name)
    if block.strided and 96 % block.flat:
        pytest.skip("does not divide")
    cells = Cells(shape, block)
    scale = torch.arange(float(torch.Size(block.scale_shape(shape)).numel()))
    scale = scale.reshape(block.scale_shape(shape))
    x = torch.arange(96.0).reshape(shape)
    expanded = block.expand(scale, shape).expand(shape)
    assert torch.equal(cells.plain(cells.view(x) * cells.spread(scale)), x * expanded)
    sums = cells.sums(cells.view(x))
    assert sums.shape == scale.shape
    for index in range(scale.numel()):
        assert sums.reshape(-1)[index] == x[expanded == index].sum()


@pytest.mark.parametrize("name", ["block2x2x4", "group4", "group5@0"])
def test_three_dimensions(name: str) -> None:
    shape, block = (4, 6, 8), read_block(name)
    cells, x = Cells(shape, block), torch.randn(4, 6, 8, dtype=torch.float64)
    scale = torch.randn(block.scale_shape(shape), dtype=torch.float64)
    direct = (x * block.expand(scale, shape)).sum()
    assert torch.isclose((cells.sums(cells.view(x)) * scale).sum(), direct)
