# SPDX-License-Identifier: BSD-3-Clause
"""Every size of block has a launch setting that fits a program."""

import pytest

from blockscale.kernels.cuda.primitives.settings import setting
from blockscale.kernels.cuda.primitives.tiling import Blocks, tiling


@pytest.mark.usefixtures("settings_of_a_gpu")
@pytest.mark.parametrize("given", [False, True])
def test_every_size_of_block_has_a_setting(given: bool) -> None:
    """A block as large as a program may hold has the most warps; larger ones take other ways."""
    for size in (*range(1, 70), *(2**k + d for k in range(7, 18) for d in (-1, 0, 1))):
        box = Blocks(1, 6 * size, 9, 3 * size, 1, before=((3, 3), (2 * size, size)))
        for shape in (Blocks(1, 7, 2 * size, 1, size), Blocks(1, 2 * size, 9, size, 1), box):
            for merged in (False, True):
                chosen = setting(shape, given=given, merged=merged)
                laid = tiling(shape, chosen.elements, whole=not given, unit=chosen.unit)
                if laid is None:
                    assert not given and shape.bm * shape.bk > 2**15
                    continue
                tile = laid.tile
                assert tile.rows * tile.columns <= 2**15
                assert tile.rows * tile.columns * laid.programs >= 7 * 2 * size
