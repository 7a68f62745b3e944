# SPDX-License-Identifier: BSD-3-Clause
"""Blocks of codes and scales that are multiplied in their shapes."""

import pytest

from blockscale.export.checkpoints.openvino import block_of


@pytest.mark.parametrize(
    ("codes", "scale", "values", "block"),
    [
        ((6, 4, 32), (6, 4, 1), (6, 128), "group32"),
        ((4, 32, 6), (4, 1, 6), (128, 6), "group32@0"),
        ((6, 128), (6, 1), (6, 128), "channel0"),
        ((6, 128), (1, 128), (6, 128), "channel1"),
        ((6, 128), (128,), (6, 128), "channel1"),
        ((6, 128), (), (6, 128), "tensor"),
        ((6, 128), (1, 1), (6, 128), "tensor"),
        ((6, 4, 32), (6, 1, 1), (6, 128), "channel0"),
        ((8, 3, 5, 5), (8, 1, 1, 1), (8, 3, 5, 5), "channel0"),
        ((2, 6, 4, 32), (2, 6, 4, 1), (2, 6, 128), "group32"),
        ((6, 1, 32), (6, 1, 1), (6, 32), "channel0"),
        ((6, 4, 32), (6, 3, 1), (6, 128), None),
        ((6, 4, 32), (6, 1, 32), (6, 128), None),  # scales that repeat: no block lies so
        ((6, 4, 32), (6, 4, 1), (24, 16, 2), None),
        ((6, 8), (1, 6, 8), (6, 8), None),
    ],
)
def test_block_of(codes, scale, values, block):
    assert block_of(codes, scale, values) == block
