# SPDX-License-Identifier: BSD-3-Clause
"""Blocks after slices, selections and expansions."""

import pytest

from blockscale.graph.passes.moves.cuts import _block_bounds
from tests.graph.passes.moves.cases import block_after


@pytest.mark.some(3)
@pytest.mark.parametrize(
    ("move", "fmt", "block"),
    [
        ("select last", "int8:tensor:fp32", ""),
        ("slice of rows", "int8:group16:fp32", "group16"),
        ("slice within a group", "int8:group16:fp32", ""),
        ("slice", "int8:tile3x32:fp32", ""),
        ("slice of rows", "int8:token:fp32", "token"),
        ("select", "int8:group2@1:fp32", "group1"),
        ("index_select", "int8:token:fp32", "token"),
        ("index_select", "int8:group2@1:fp32", ""),
        ("index_select of rows", "int8:channel-1:fp32", "channel-1"),
        ("index_select of rows", "int8:group16:fp32", ""),
    ],
)
def test_the_block_is_spelled_anew(move: str, fmt: str, block: str) -> None:
    assert block_after(move, fmt) == block


@pytest.mark.parametrize(
    ("start", "end", "step", "expected"),
    [
        (0, 32, 1, (0, 2, 1)),
        (16, 100, 1, (1, 3, 1)),
        (-16, None, 1, None),
        (32, 1 << 62, 1, (2, 3, 1)),
        (8, 32, 1, None),
        (0, 24, 1, None),
        (0, 32, 2, None),
    ],
)
def test_bounds_in_blocks(start: int, end: int | None, step: int, expected: tuple | None) -> None:
    """Of 40 elements in blocks of 16, the last of them partial."""
    assert _block_bounds(16, 40, start, end, step) == expected
