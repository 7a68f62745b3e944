# SPDX-License-Identifier: BSD-3-Clause
"""The rule: a workgroup covers one block where it can, and its neighbours with what is left."""

from math import prod

import pytest

from blockscale.kernels.webgpu.textures.local_size import INVOCATIONS, local_size

LARGE = (1024, 1024, 64)


@pytest.mark.parametrize(
    ("block", "size", "expected"),
    [
        ((8, 1, 1), LARGE, (128, 2, 1)),  # groups of 32: sixteen in a row, of two rows
        ((1, 2, 3), LARGE, (32, 2, 4)),  # blocks of three layers, side by side
        ((4, 16, 1), LARGE, (16, 16, 1)),  # four tiles of 16 x 16
        ((1024, 1, 1), LARGE, (128, 2, 1)),  # parts of rows
        ((1, 1024, 1), LARGE, (16, 16, 1)),  # blocks along columns
        ((1, 1, 1), (3, 5, 100), (4, 8, 8)),  # narrow textures: no invocation lies idle far off
    ],
)
def test_a_block_first_then_its_neighbours(
    block: tuple[int, int, int], size: tuple[int, int, int], expected: tuple[int, int, int]
) -> None:
    found = local_size(block, size)
    assert found == expected
    assert prod(found) == INVOCATIONS


def test_small_textures_have_small_workgroups() -> None:
    assert local_size((1, 1, 1), (1, 1, 1)) == (1, 1, 1)
    assert local_size((2, 2, 1), (3, 2, 1)) == (4, 2, 1)
